"""Exported graph: a model together with its preprocessing, labels and output function."""

from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf
from absl import logging

from keras_vit.data import headers, preprocess
from keras_vit.exporting import graph_ops
from keras_vit.inference import masks
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.saved_model import FEATURES_TENSOR
from keras_vit.inspection import attention, token_layout
from keras_vit.layers import kernels
from keras_vit.models.representation import head_input
from keras_vit.outputs import TOP_K

EXTRA_SIGNATURES = ("features", "attention")


def trace(methods: Mapping[str, tuple[Callable, tf.TensorSpec]]) -> dict[str, tf.types.experimental.ConcreteFunction]:
    """Trace the signatures of an artifact, without the backward passes of kernels."""
    with kernels.plain():
        return {
            name: tf.function(method, autograph=False).get_concrete_function(spec)
            for name, (method, spec) in methods.items()
        }


def write(module: tf.Module, path: str, functions: Mapping[str, Callable]) -> None:
    """Save a module with its signatures."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)  # TensorFlow logs the name of the temporary directory
    try:
        tf.saved_model.save(module, path, signatures=functions)
    finally:
        logging.set_verbosity(verbosity)


class ServingModule(tf.Module):
    """Module with the signatures that TensorFlow Serving offers for a trained model.

    Saving the Keras model with `tf.saved_model.save` would lose the names and dtypes of its signature. This module
    tracks the model's variables and traces its call instead.
    """

    def __init__(self, model: keras.Model, card: ModelCard, top_k: int = TOP_K, extra_signatures: Sequence[str] = ()):
        super().__init__(name="predictor")
        # A lambda hides the model from tracking. Otherwise its Keras variables would be saved next to their values.
        self._model = lambda: model
        self._card, self._top_k = card, top_k
        self._preprocess = card.preprocess_function()
        self._extra_signatures = tuple(extra_signatures)
        unknown = set(extra_signatures) - set(EXTRA_SIGNATURES)
        if unknown:
            raise ValueError(f"`extra_signatures` must be among {EXTRA_SIGNATURES}. Received: {sorted(unknown)}.")
        self.model_variables = [variable.value for variable in model.variables]  # tracked, and so saved

    def classify_bytes(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Run on encoded images of any size, string `[B]`. Unreadable images get zeros and `valid` = False."""
        images, valid = self._read(image_bytes)
        return {**_blank_invalid(self.classify_tensor(images), valid), "valid": valid}

    def classify_images(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Run on decoded images of the same size, uint8 `[B, h, w, C]`. Masks have the size of the images."""
        prepared, valid = graph_ops.map_valid(self._preprocess, images, tf.TensorSpec(self._card.image_shape))
        outputs = self.classify_tensor(prepared)
        if self._card.kind.has_masks:
            outputs["mask"] = graph_ops.resized(outputs["mask"], tf.shape(images)[1:3])
        return _blank_invalid(outputs, valid)

    def masks_of_bytes(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the masks of encoded images as PNG files in the sizes of the images, and the names of the classes."""
        (images, sizes), valid = self._read_sized(image_bytes)
        outputs = self.classify_tensor(images)
        found = graph_ops.of_sizes(graph_ops.to_png, outputs.pop("mask"), sizes, tf.TensorSpec([], tf.string))
        return {**_blank_invalid({"mask_bytes": found, **outputs}, valid), "valid": valid}

    def run_lengths(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the masks of encoded images as run lengths, padded to the longest, and the sizes of the images."""
        (images, sizes), valid = self._read_sized(image_bytes)
        runs = tf.RaggedTensorSpec([None, 2], tf.int32, ragged_rank=0)
        found = graph_ops.of_sizes(graph_ops.to_runs, self.classify_tensor(images)["mask"], sizes, runs)
        return {**_blank_invalid({"run_lengths": found.to_tensor(), "size": sizes}, valid), "valid": valid}

    def classify_tensor(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Run on preprocessed images, float32 `[B, H, W, C]`."""
        predictions, names = self._card.predictions(self._model()(images, training=False)), list(self._card.names)
        kind, outputs = self._card.kind, {self._card.output_name: predictions}  # [B, k], or masks [B, H, W]
        if not names:
            return outputs
        if not kind.has_probabilities:
            with tf.device("/cpu:0"):  # strings
                rows = tf.broadcast_to(tf.constant(names, tf.string), (tf.shape(predictions)[0], len(names)))
            return {**outputs, kind.served_names: rows}
        scores, indices = tf.math.top_k(predictions, min(self._top_k, len(names)))  # [B, top_k]
        with tf.device("/cpu:0"):
            labels = tf.gather(tf.constant(names, tf.string), indices)
        return {**outputs, kind.served_names: labels, kind.served_entries: scores}

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """Trace all signatures and return them by name."""
        height, width, channels = self._card.image_shape
        encoded = tf.TensorSpec([None], tf.string, "image_bytes")
        prepared = tf.TensorSpec([None, height, width, channels], tf.float32, "images")
        methods = {
            "serving_default": (self.classify_bytes, encoded),
            "serve_images": (self.classify_images, tf.TensorSpec([None, None, None, channels], tf.uint8, "images")),
            "serve_tensor": (self.classify_tensor, prepared),
        }
        if self._card.kind.has_masks:
            masks.check_preprocess(self._card.preprocess)
            methods |= {"serving_default": (self.masks_of_bytes, encoded), "run_lengths": (self.run_lengths, encoded)}
        functions = {"features": features_function, "attention": attention_function}
        for name in self._extra_signatures:
            methods[name] = (self._of_bytes(name, functions[name](self._model())), encoded)
        if "features" in self._extra_signatures:
            features = features_function(self._model())
            methods[FEATURES_TENSOR] = (lambda images: {"features": features(images)}, prepared)
        return trace(methods)

    def _read(self, image_bytes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Preprocess encoded images. Return the images, `[B, H, W, C]`, and whether each image is valid, `[B]`."""

        def read(contents):
            return self._preprocess(headers.check(contents, self._card.max_pixels, untrusted=True))

        return graph_ops.map_valid(read, image_bytes, tf.TensorSpec(self._card.image_shape))

    def _read_sized(self, image_bytes: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
        """Preprocess encoded images.

        Returns the images, their original sizes, int32 `[B, 2]`, and whether each image is valid.
        """
        decode = preprocess.host_function(masks.decoding(self._card.preprocess))

        def read(contents):
            pixels = decode({"image": headers.check(contents, self._card.max_pixels, untrusted=True)})["image"]
            return self._preprocess(pixels), tf.shape(pixels)[:2]

        specs = tf.TensorSpec(self._card.image_shape), tf.TensorSpec([2], tf.int32)
        return graph_ops.map_valid(read, image_bytes, specs)

    def _of_bytes(self, name: str, function: Callable) -> Callable:
        """Return a signature for encoded images whose output is called `name`."""

        def method(image_bytes):
            images, valid = self._read(image_bytes)
            return {**_blank_invalid({name: function(images)}, valid), "valid": valid}

        return method


def _blank_invalid(prediction: dict[str, tf.Tensor], valid: tf.Tensor) -> dict[str, tf.Tensor]:
    """Replace the rows of invalid images with zeros or empty strings."""

    def blank(value):
        rows = tf.reshape(valid, [-1] + [1] * (value.shape.rank - 1))  # [B, 1, ...]
        return tf.where(rows, value, "" if value.dtype == tf.string else tf.zeros_like(value))

    return {name: blank(value) for name, value in prediction.items()}


def features_function(model: keras.Model) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function from images `[B, H, W, C]` to the features of `models.representation`, float32 `[B, D]`."""
    features = head_input(model)
    if features is None:
        raise ValueError(f"The model must have a layer 'head'; its input is the features. Received: {model.name!r}.")
    body = keras.Model(model.inputs, features)
    return lambda images: tf.cast(body(images, training=False), tf.float32)


def attention_function(model: keras.Model) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function from images `[B, H, W, C]` to the attention map of each block, float32 `[B, blocks, h, w]`.

    A map is the mean over the attention heads of the class token's row. Without a class token, the map is the mean over
    the attention heads and the rows of all patches. Weights on tokens other than patches are left out, so a map sums to
    less than 1.

    References:
        [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), appendix D.8
    """
    attention.require_attention(model)

    def maps(images):
        blocks = []

        def keep(layer, weights, recorder):
            if weights.shape[-2] != 1:  # [B, H, N, N]; skip attention pooling, which has one row for its probe
                blocks.append(tf.reduce_mean(tf.cast(weights, tf.float32), axis=1))  # [B, N, N]

        _, recorder = attention.run(model, images, keep)
        layout = recorder.layout()
        weights = tf.stack(blocks, axis=1)  # [B, L, N, N]
        if layout.reads == token_layout.TOKENS:
            rows = tf.gather(weights, list(layout.read_tokens), axis=2)
        else:
            rows = weights[:, :, layout.num_prefix_tokens :]
        row = tf.reduce_mean(rows, axis=2)[..., layout.num_prefix_tokens :]  # [B, L, h*w]
        return tf.reshape(row, [-1, len(blocks), *layout.grid])  # [B, L, h, w]

    return maps
