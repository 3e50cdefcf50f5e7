"""Page of the development server: the prediction for an image, and the parts on which the prediction relies."""

import base64
import hashlib
import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data import headers
from keras_vit.inference import masks, preparation
from keras_vit.inference.masks import palette
from keras_vit.inspection import examples, html, plots
from keras_vit.inspection.occlusion import covered_scores
from keras_vit.tf_serving import RequestError
from keras_vit.version import __version__

from .served_model import ServedModel

_GRID, _BATCH = 8, 16  # rows and columns of parts to cover; covered images per batch
_FOOTER = (
    f"Development server of keras_vit {__version__}, without batching, authentication or encryption. "
    "Use TensorFlow Serving for production."
)
_POLICY = "default-src 'none'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"


class Page:
    """The page, and the responses to its requests. The HTTP headers of the page allow only its own script and style."""

    def __init__(self, model: ServedModel):
        self._model, self._explaining = model, threading.Lock()
        height, width, _ = model.card.image_shape
        script, css, body = (html.asset(f"serve.{kind}", __package__) for kind in ("js", "css", "html"))
        subtitle = f"Version {model.version}. Input: {width} x {height} pixels. Output: {model.card.output_name}."
        body = body.replace("{{examples}}", _examples(tuple(model.examples)))
        script = f"<script>{script}</script>"
        self.html = html.document(model.name, subtitle, (), body, _FOOTER, script, css, policy="")
        allowed = "; ".join(f"{name}-src {_source(self.html, name)}" for name in ("script", "style"))
        self.headers = {"Content-Security-Policy": f"{_POLICY}; {allowed}", "X-Content-Type-Options": "nosniff"}

    def predict(self, body: bytearray) -> dict[str, Any]:
        """Predict an encoded image. Return names and numbers, or only the shape of an output without names."""
        kind, names = self._model.card.kind, self._model.card.names
        found = self._model.predict_image(bytes(body))
        if not found["valid"]:
            raise RequestError(f"The image cannot be read: {found['error']}")
        response: dict[str, Any] = {"kind": kind.output_name}
        if not kind.served_names:
            return {**response, "shape": np.shape(found[kind.output_name])}
        if kind.has_masks:
            mask = masks.from_png(base64.b64decode(found[kind.served_entries]["b64"]))
            colors = dict(zip(names, palette(len(names)).tolist(), strict=True))
            parts = [_part(name, share, color=colors[name]) for name, share in kind.parts(mask, names)]
            # The colors repeat after 256 classes.
            return {**response, "parts": parts, "mask": html.data_url(masks.to_png(mask % 256), "image/png")}
        pairs = zip(found[kind.served_names], found[kind.served_entries], strict=True)
        return {**response, "parts": [_part(name, number) for name, number in pairs]}

    def explain(self, body: bytearray) -> dict[str, Any]:
        """Return the preprocessed image, and each output's decrease when a part is covered, `[rows, columns]`.

        For probabilities, only the most probable classes are returned.
        """
        card, predict = self._model.card, self._model.scores_of
        if not card.kind.served_names or card.kind.has_masks:
            raise RequestError(
                "Explanations need a model that predicts probabilities or values. Received: a model that predicts "
                f"{card.output_name}."
            )
        if not self._explaining.acquire(blocking=False):
            raise RequestError("Another explanation is being computed. Try again later.", 503)
        try:
            example = self._read(bytes(body))
            image = np.asarray(example.image, np.float32)
            scores = predict(image[None])[0]
            # The mean is a neutral color for every range of the input.
            falls = scores - covered_scores(predict, image, _GRID, float(image.mean()), _BATCH)
        finally:
            self._explaining.release()
        order = card.kind.order(scores)
        maps = [_part(card.names[k], float(scores[k]), falls=falls[..., k].tolist()) for k in order]
        return {"image": html.data_url(masks.to_png(plots.to_rgb(example.pixels)), "image/png"), "maps": maps}

    def _read(self, content: bytes) -> examples.Example:
        """Preprocess an encoded image, after checking its size."""
        try:
            headers.check(tf.constant(content), self._model.max_pixels, untrusted=True)
            return examples.load(content, "", self._model.card.preprocess)
        except tf.errors.OpError as error:
            raise RequestError(f"The image cannot be read: {preparation.unreadable(error, content)}") from error


def _examples(names: Sequence[str]) -> str:
    """Return the HTML of a button for each image of `ServedModel.examples`."""
    images = (f'<img alt="{html.escape(name)}" src="page/examples/{index}">' for index, name in enumerate(names))
    buttons = "".join(f"<button>{image}</button>" for image in images)
    return f'<p id="examples">or a test image: {buttons}</p>\n' if buttons else ""


def _part(name: str, number: float, **details: Any) -> dict[str, Any]:
    return {"name": name, "number": number, **details}


def _source(document: str, element: str) -> str:
    """Return the hash that allows the document's only inline element of this name in a content security policy."""
    (content,) = re.findall(f"<{element}>(.*?)</{element}>", document, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
