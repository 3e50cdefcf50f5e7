"""The model of the development server: a SavedModel, or another predictor with the signatures of a SavedModel."""

import base64
import contextlib
import json
import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data import headers
from keras_vit.data.images import MAX_PIXELS as MAX_IMAGE_PIXELS
from keras_vit.exporting import graph_ops
from keras_vit.inference import Predictor, masks, preparation
from keras_vit.inference.saved_model import SavedModelPredictor
from keras_vit.outputs import TOP_K
from keras_vit.tf_serving import RequestError

from . import rest

MAX_IMAGES = 400  # per request
MAX_PIXELS = 2 * graph_ops.MAX_PIXELS  # per request with several images
_LARGE_PIXELS = 12_500_000  # Requests with more pixels are computed one at a time.


class ServedModel:
    """Responses of one version of a model, as objects for JSON.

    `examples` maps names to image files. The page offers these images for trying the model.
    """

    def __init__(self, name: str, predictor: Predictor, examples: Mapping[str, bytes] | None = None):
        self.name, self.version, self.card, self.examples = name, 1, predictor.card, examples or {}
        self.is_warm = False
        self.max_pixels = predictor.card.max_pixels or MAX_IMAGE_PIXELS
        self._large = threading.Lock()
        self._servable: SavedModelPredictor | ServedPredictor
        if isinstance(predictor, SavedModelPredictor):
            number = os.path.basename(os.path.normpath(predictor.path))
            self.version = int(number) if number.isdecimal() else 1
            self._servable = predictor
        else:
            self._servable = ServedPredictor(predictor)

    def predict(self, body: object) -> dict[str, Any]:
        """Respond to a predict request. If images are not valid, the response has `errors`, a text for each image."""
        signature = body.get("signature_name", "") if isinstance(body, Mapping) else ""
        if not isinstance(signature, str):
            raise RequestError(f"'signature_name' must be a string. Received: {json.dumps(signature)[:100]}.")
        signature = signature or "serving_default"
        signatures = self._servable.signatures
        if signature not in signatures:
            raise RequestError(f"Serving signature key {signature[:100]!r} not found. Available: {sorted(signatures)}.")
        try:
            inputs, rows = rest.parse_predict(body, signatures[signature].inputs)
            with self._large if self._pixels(inputs) > _LARGE_PIXELS else contextlib.nullcontext():
                outputs = self._servable.run(signature, inputs)
                response, valid = rest.format_predict(outputs, rows), outputs.get("valid")
                if valid is not None and not valid.all():
                    pairs = zip(inputs["image_bytes"], valid, strict=True)
                    response["errors"] = ["" if ok else self._reason(content) for content, ok in pairs]
                return response
        except RequestError:
            raise
        except RecursionError as error:
            raise RequestError("The JSON of the request is nested too deeply.") from error
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            raise RequestError(str(error).split("\n", 1)[0]) from error

    def predict_image(self, content: bytes) -> dict[str, Any]:
        """Return the outputs of `serving_default` for one encoded image, as in a response, and `error` if any."""
        request = {"inputs": {"image_bytes": [{"b64": base64.b64encode(content).decode()}]}}
        response = self.predict(request)
        outputs = {**response["outputs"], "error": response.get("errors", [""])}
        return {name: values[0] for name, values in outputs.items()}

    def scores_of(self, images: np.ndarray) -> np.ndarray:
        """Return the predictions for preprocessed images `[B, H, W, C]`."""
        return self._servable.predict(images)

    def warm_up(self) -> None:
        """Predict one image, because the first prediction is slow, and set `is_warm`."""
        try:
            self.predict_image(masks.to_png(np.zeros((64, 64, 3), np.uint8)))
            self.is_warm = True
        except Exception:
            logging.exception("%s cannot predict; /readyz stays at status 503", self.name)

    def _reason(self, content: bytes) -> str:
        """Return why an image is not valid."""
        try:
            headers.check(tf.constant(content), self.max_pixels, untrusted=True)
            self.card.prepare([content])
        except tf.errors.OpError as error:
            return preparation.unreadable(error, content) or ""
        return "not a readable image"

    def _pixels(self, inputs: Mapping[str, np.ndarray]) -> int:
        """Return the number of pixels to count for a request.

        Raises a `RequestError` for an image with too many pixels.
        """
        images = [image for array in inputs.values() if array.dtype == object for image in array.ravel()]
        pixels = 0
        for image in images:
            with contextlib.suppress(tf.errors.OpError):  # unreadable
                count = int(headers.pixel_count(tf.constant(image)))
                pixels += count if count <= self.max_pixels else 0  # larger images are not decoded
        if len(images) > MAX_IMAGES or len(images) > 1 and pixels > MAX_PIXELS:
            raise RequestError(
                f"A request may have at most {MAX_IMAGES} images, with {MAX_PIXELS:,} pixels in total. Received: "
                f"{len(images)} images with {pixels:,} pixels. Send fewer images per request.",
                413,
            )
        return max(pixels, len(images) * (MAX_PIXELS // MAX_IMAGES))  # small images are enlarged by preprocessing

    def metadata(self) -> dict[str, Any]:
        """Respond to a metadata request."""
        from google.protobuf import json_format

        definitions = {
            name: json_format.MessageToDict(definition, preserving_proto_field_name=True)
            for name, definition in self._servable.signatures.items()
        }
        return {
            "model_spec": {"name": self.name, "signature_name": "", "version": str(self.version)},
            "metadata": {"signature_def": {"signature_def": definitions}},
        }

    def status(self) -> dict[str, Any]:
        """Respond to a status request."""
        status = {"error_code": "OK", "error_message": ""}
        return {"model_version_status": [{"version": str(self.version), "state": "AVAILABLE", "status": status}]}


class ServedPredictor:
    """Predictor with the signatures of a SavedModel for encoded images."""

    def __init__(self, predictor: Predictor, top_k: int = TOP_K):
        if not predictor.card.names:
            raise ValueError(f"The model must have a classification head, or values. Received: {predictor.path!r}.")
        self._predictor, self._card = predictor, predictor.card
        self._names = np.array([name.encode() for name in predictor.card.names], object)
        self._top_k = min(top_k, len(self._names))
        self._lock = threading.Lock()  # an interpreter runs one batch at a time
        self._methods = {"serving_default": self._labeled}
        if self._card.kind.has_masks:
            masks.check_preprocess(self._card.preprocess)
            self._methods = {"serving_default": self._png_files, "run_lengths": self._run_lengths}
        self.signatures = {name: self._signature(name) for name in self._methods}

    def run(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run a signature on `image_bytes`, bytes `[B]`. Unreadable images get zeros and `valid` = False."""
        contents = inputs["image_bytes"]
        images = [self._read(content) for content in contents]
        valid = np.array([image is not None for image in images], bool)
        predictions: Any = np.zeros((0, len(self._names)), np.float32)
        if valid.any():
            predictions = self.predict(np.stack([image for image in images if image is not None]))
            readable = [content for content, ok in zip(contents, valid, strict=True) if ok]
            predictions = self._card.at_image_sizes(predictions, readable)
        outputs = self._methods[signature](predictions, int(valid.sum()))
        return {**{name: _with_blanks(values, valid) for name, values in outputs.items()}, "valid": valid}

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return the predictions for preprocessed images `[B, H, W, C]`."""
        with self._lock:
            return self._predictor.predict(images)

    def _labeled(self, predictions: Any, count: int) -> dict[str, np.ndarray]:
        """Return probabilities with the top classes, or values with their names."""
        kind, outputs = self._card.kind, {self._card.output_name: predictions}
        if not kind.has_probabilities:
            return {**outputs, kind.served_names: np.tile(self._names, (count, 1))}
        order = np.argsort(-predictions, axis=-1, kind="stable")[:, : self._top_k]
        scores = np.take_along_axis(predictions, order, axis=-1)
        return {**outputs, kind.served_names: self._names[order], kind.served_entries: scores}

    def _png_files(self, predictions: Any, count: int) -> dict[str, np.ndarray]:
        """Return masks as PNG files, and the names of the classes."""
        files = np.array([masks.to_png(mask) for mask in predictions], object)
        return {"mask_bytes": files, "class_names": np.tile(self._names, (count, 1))}

    def _run_lengths(self, predictions: Any, count: int) -> dict[str, np.ndarray]:
        """Return masks as run lengths, padded to the longest, and their sizes."""
        runs = [masks.to_runs(mask) for mask in predictions]
        filled = np.zeros((count, max(map(len, runs), default=0), 2), np.int32)
        for row, run in zip(filled, runs, strict=True):
            row[: len(run)] = run
        sizes = np.array([mask.shape for mask in predictions], np.int32).reshape(count, 2)
        return {"run_lengths": filled, "size": sizes}

    def _read(self, contents: bytes) -> np.ndarray | None:
        """Preprocess an encoded image; None if it is unreadable or too large."""
        try:
            headers.check(tf.constant(contents), MAX_IMAGE_PIXELS, untrusted=True)
            return self._predictor.preprocess([contents])[0]
        except tf.errors.OpError:
            return None

    def _signature(self, name: str) -> Any:
        """Describe a signature for metadata requests."""
        with tf.Graph().as_default():
            inputs = {"image_bytes": tf.compat.v1.placeholder(tf.string, [None])}
            outputs = {
                output: tf.compat.v1.placeholder(
                    tf.string if array.dtype == object else array.dtype, [size or None for size in array.shape]
                )
                for output, array in self.run(name, {"image_bytes": []}).items()
            }
            return tf.compat.v1.saved_model.predict_signature_def(inputs=inputs, outputs=outputs)


def _with_blanks(values: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Insert rows of zeros or empty strings for the images that are not valid."""
    rows = np.full((len(valid), *values.shape[1:]), b"" if values.dtype == object else 0, values.dtype)
    rows[valid] = values
    return rows
