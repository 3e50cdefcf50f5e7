"""The exported graph: a model together with its preprocessing, labels and output function."""

import keras
import tensorflow as tf
from absl import logging

from keras_vit.serving import decoding, outputs, representations


def write(module: tf.Module, path: str, functions: dict) -> None:
    """Saves a module with its signatures.

    Args:
        module: Tracks the variables that the signatures use.
        path: The directory to write into.
        functions: Concrete functions by signature name.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)  # TensorFlow names the temporary directory, which nobody will find
    try:
        tf.saved_model.save(module, path, signatures=functions)
    finally:
        logging.set_verbosity(verbosity)


EXTRA_SIGNATURES = ("features", "attention")
FEATURES_TENSOR = "features_tensor"


class ServingModule(tf.Module):
    """A trained classifier as a `tf.Module` whose signatures TF Serving offers.

    A Keras model cannot be saved with `tf.saved_model.save` directly: names and dtypes of its signature get lost. The
    module tracks the model's variables and traces its call instead.

    Args:
        model: Returns logits, `[B, classes]`, for images `[B, H, W, C]`.
        preprocess: Takes a picture, encoded (scalar string) or decoded (uint8 `[h, w, C]`), and returns the model's
            input, float32 `[H, W, C]`. Part of the graph, so that training and serving cannot differ.
        image_shape: The static shape `(H, W, C)` that `preprocess` returns.
        class_names: One label for each class.
        output: "softmax" or "sigmoid", as the model was trained.
        top_k: Number of labels in the answer.
        max_pixels: Pictures with more pixels are refused before they are decoded.
        extra_signatures: Which of `EXTRA_SIGNATURES` to offer as well; with "features" comes "features_tensor".

    Raises:
        ValueError: If the model cannot give one of the extra signatures, or the class names do not fit.
    """

    def __init__(
        self,
        model: keras.Model,
        preprocess,
        image_shape: tuple[int, int, int],
        class_names: tuple[str, ...] = (),
        output: str = "softmax",
        top_k: int = outputs.TOP_K,
        max_pixels: int = decoding.MAX_PIXELS,
        extra_signatures: tuple[str, ...] = (),
    ):
        super().__init__(name="classifier")
        # Behind a function, so that it is not tracked: Keras' variables wrap those below, and both would be saved.
        self._model = lambda: model
        self._preprocess = preprocess
        self._image_shape = tuple(image_shape)
        self._class_names = outputs.check_class_names(class_names, model.output_shape[-1])
        self._output = output
        self._top_k = top_k
        self._max_pixels = max_pixels
        self._extra_signatures = tuple(extra_signatures)
        unknown = set(extra_signatures) - set(EXTRA_SIGNATURES)
        if unknown:
            raise ValueError(f"extra_signatures must be out of {EXTRA_SIGNATURES}. Received: {sorted(unknown)}.")
        self.model_variables = [variable.value for variable in model.variables]  # tracked: they are what gets saved

    def classify_bytes(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Encoded pictures of any size, string `[B]`. One that cannot be read gets zeros and `valid` = False."""
        images, valid = self._read(image_bytes)
        return {**_blank_invalid(self._classify(images), valid), "valid": valid}

    def classify_images(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Decoded pictures of one size, uint8 `[B, h, w, C]`."""
        prepared, valid = decoding.map_valid(self._preprocess, images, self._image_shape)
        return _blank_invalid(self._classify(prepared), valid)

    def classify_tensor(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Preprocessed images, float32 `[B, H, W, C]`."""
        return self._classify(images)

    def features_of_tensor(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """What the head reads, of preprocessed images, float32 `[B, H, W, C]`."""
        return {"features": representations.features_function(self._model())(images)}

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """Traces all signatures, by name."""
        height, width, channels = self._image_shape
        encoded = tf.TensorSpec([None], tf.string, "image_bytes")
        prepared = tf.TensorSpec([None, height, width, channels], tf.float32, "images")
        methods = {
            "serving_default": (self.classify_bytes, encoded),
            "serve_images": (self.classify_images, tf.TensorSpec([None, None, None, channels], tf.uint8, "images")),
            "serve_tensor": (self.classify_tensor, prepared),
        }
        functions = {"features": representations.features_function, "attention": representations.attention_function}
        for name in self._extra_signatures:
            methods[name] = (self._of_bytes(name, functions[name](self._model())), encoded)
        if "features" in self._extra_signatures:
            methods[FEATURES_TENSOR] = (self.features_of_tensor, prepared)
        return {
            name: tf.function(method, autograph=False).get_concrete_function(spec)
            for name, (method, spec) in methods.items()
        }

    def _read(self, image_bytes):
        """Preprocessed images `[B, H, W, C]` and which of them are valid, `[B]`."""

        def read(contents):
            return self._preprocess(decoding.check_size(contents, self._max_pixels))

        return decoding.map_valid(read, image_bytes, self._image_shape)

    def _of_bytes(self, name, function):
        """A signature with one output, called `name`, for encoded pictures."""

        def method(image_bytes):
            images, valid = self._read(image_bytes)
            return {**_blank_invalid({name: function(images)}, valid), "valid": valid}

        return method

    def _classify(self, images):
        probabilities = outputs.to_probabilities(self._model()(images, training=False), self._output)  # [B, classes]
        return outputs.describe(probabilities, self._class_names, self._top_k)


def _blank_invalid(answer, valid):
    """Zeros and empty strings in the rows that are not valid; what the model makes of a missing image is no answer."""

    def blank(value):
        rows = tf.reshape(valid, [-1] + [1] * (value.shape.rank - 1))  # [B, 1, ...]
        return tf.where(rows, value, "" if value.dtype == tf.string else tf.zeros_like(value))

    return {name: blank(value) for name, value in answer.items()}
