"""The exported graph: a model together with its preprocessing, labels and output function."""

import keras
import tensorflow as tf
from absl import logging

from keras_vit.serving import decoding, outputs


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
    ):
        super().__init__(name="classifier")
        self._model = model
        self._preprocess = preprocess
        self._image_shape = tuple(image_shape)
        self._class_names = outputs.check_class_names(class_names, model.output_shape[-1])
        self._output = output
        self._top_k = top_k
        self._max_pixels = max_pixels
        self.model_variables = [variable.value for variable in model.variables]  # tracked: they are what gets saved

    def serve_image_bytes(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Encoded pictures of any size, string `[B]`. One that cannot be read gets zeros and `valid` = False."""

        def read(contents):
            return self._preprocess(decoding.check_size(contents, self._max_pixels))

        images, valid = decoding.map_valid(read, image_bytes, self._image_shape)
        return {**self._classify(images, valid), "valid": valid}

    def serve_images(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Decoded pictures of one size, uint8 `[B, h, w, C]`."""
        prepared, valid = decoding.map_valid(self._preprocess, images, self._image_shape)
        return self._classify(prepared, valid)

    def serve_tensor(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Preprocessed images, float32 `[B, H, W, C]`."""
        return self._classify(images)

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """Traces all signatures, by name."""
        height, width, channels = self._image_shape
        specs = {
            "serving_default": (self.serve_image_bytes, tf.TensorSpec([None], tf.string, "image_bytes")),
            "serve_images": (self.serve_images, tf.TensorSpec([None, None, None, channels], tf.uint8, "images")),
            "serve_tensor": (self.serve_tensor, tf.TensorSpec([None, height, width, channels], tf.float32, "images")),
        }
        return {name: tf.function(method).get_concrete_function(spec) for name, (method, spec) in specs.items()}

    def _classify(self, images, valid=None):
        """Answers for preprocessed images; rows that are not valid become zeros and empty labels."""
        probabilities = outputs.to_probabilities(self._model(images, training=False), self._output)  # [B, classes]
        answer = outputs.describe(probabilities, self._class_names, self._top_k)
        if valid is None:
            return answer
        return {
            name: tf.where(valid[:, None], value, tf.zeros_like(value) if value.dtype != tf.string else "")
            for name, value in answer.items()
        }
