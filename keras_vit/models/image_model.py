"""Functional models that look at the images they are given, before Keras does."""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

import keras

from keras_vit._checks import described
from keras_vit.layers import kernels
from keras_vit.models.inputs import first_images, images_spec, only_tensor, warn_about_values
from keras_vit.models.onnx_erfc import register_erfc

F = TypeVar("F", bound=Callable[..., Any])


def _of_keras(method: F) -> F:
    """Return a method of `keras.Model` that first checks the shape and looks at the values of `x`."""
    name = method.__name__

    @functools.wraps(method)
    def run(self, x=None, *args, **kwargs):
        spec = images_spec(x)
        if spec is not None:
            self._check_images(spec)
        self._look_at(x, stacklevel=4)
        try:
            return getattr(super(ImageModel, self), name)(x, *args, **kwargs)
        except BaseException:
            if keras.backend.backend() == "jax":
                self.jax_state_sync()  # the variables are without values while Keras runs
            raise

    return run  # type: ignore[return-value]


class ImageModel(keras.Model):
    """Functional model of images that checks their shape, and warns once about values that were not prepared.

    `fit`, `evaluate`, `predict` and their forms for one batch look at arrays and at the first element of a
    `tf.data.Dataset` or `keras.utils.PyDataset`. Generators are not looked at: their first batch would be lost.
    """

    _has_seen_images = False

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the shape of the images, with a message of what to do, and run the model."""
        inputs = only_tensor(inputs)
        self._check_images(inputs)
        self._look_at(inputs, stacklevel=4)
        return super().__call__(inputs, *args, **kwargs)

    fit = _of_keras(keras.Model.fit)
    evaluate = _of_keras(keras.Model.evaluate)
    predict = _of_keras(keras.Model.predict)
    train_on_batch = _of_keras(keras.Model.train_on_batch)
    test_on_batch = _of_keras(keras.Model.test_on_batch)
    predict_on_batch = _of_keras(keras.Model.predict_on_batch)

    def export(
        self,
        filepath: Any,
        format: str = "tf_saved_model",  # noqa: A002
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Write the model for serving; see `keras.Model.export`. The file holds no backward passes."""
        if format == "onnx":
            if keras.backend.backend() == "tensorflow" and importlib.util.find_spec("tf2onnx"):
                register_erfc()
            # Without a signature, Keras refuses a model that was never called.
            images = self.inputs[0]
            spec = keras.layers.InputSpec(shape=images.shape, dtype=images.dtype, name=images.name)
            input_signature = [spec] if input_signature is None else input_signature
        with kernels.plain():
            super().export(filepath, format=format, verbose=verbose, input_signature=input_signature, **kwargs)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any) -> Any:
        """Run the model. Images whose size is known at run time only are refused there if they have another one."""
        inputs = only_tensor(inputs)
        self._check_images(inputs)  # Keras' training on JAX comes here without `__call__`
        if keras.backend.backend() == "tensorflow" and None in tuple(inputs.shape)[1:]:
            import tensorflow as tf

            inputs = tf.ensure_shape(inputs, self.inputs[0].shape)
        return super().call(inputs, training=training, mask=mask, **kwargs)

    def _look_at(self, x, stacklevel):
        """Warn once about images that were not prepared."""
        if not self._has_seen_images:
            self._has_seen_images = warn_about_values(self, first_images(x), stacklevel)

    def _check_images(self, images):
        """Raise a ValueError if a tensor or its specification does not fit the model."""
        shape = getattr(images, "shape", ())
        if getattr(shape, "rank", 0) is None:  # of a data set that does not know it
            return
        shape, expected = tuple(shape), tuple(self.inputs[0].shape)
        agrees = len(shape) == len(expected) and all(
            got is None or want is None or got == want for got, want in zip(shape, expected, strict=True)
        )
        if not agrees:
            own = isinstance(images, dict) and {"image", "label"} <= images.keys()
            hint = " Pass as_tuples=True to keras_vit.data.train_batches." if own else ""
            raise ValueError(
                f"{type(self).__name__} {self.name!r} takes images of shape {expected} "
                f"[batch, height, width, channels]. Received: {shape or described(images)}.{hint} Resize them, or "
                "build the model with `image_size` (None for any size) and `channels` as your images have them."
            )
