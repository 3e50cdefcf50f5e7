"""Base class of the models: a functional model that serializes as the arguments of its constructor."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Self

import keras

from keras_vit.layers import kernels
from keras_vit.layers.composite import find_changes, restore_changes
from keras_vit.models.config import Config
from keras_vit.models.inputs import warn_about_values

Filters = str | Iterable[str] | Callable[[keras.layers.Layer], bool]  # regular expressions of names, or a test


class ConfiguredModel(keras.Model):
    """Functional model that serializes as the arguments of its constructor.

    `type(model).from_config({**model.get_config(), "image_size": 384})` builds the same architecture with one argument
    changed. A saved model restores frozen, quantized and replaced layers.

    Attributes:
        config: The resolved arguments, a `ViTConfig` or `BiTConfig`.
    """

    def __init__(
        self,
        inputs: keras.KerasTensor,
        outputs: keras.KerasTensor,
        config: Config,
        name: str,
        policy: keras.DTypePolicy,
    ):
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.dtype_policy = policy
        self.config = config
        self._has_seen_images = False

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the images' shape before Keras does, whose message does not say what to do; then run the model."""
        self._check_images(inputs)
        self._look_at(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train the model; see `keras.Model.fit`."""
        self._look_at(x)
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Measure the model; see `keras.Model.evaluate`."""
        self._look_at(x)
        return super().evaluate(x, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs for arrays or a data set; see `keras.Model.predict`."""
        self._look_at(x)
        return super().predict(x, *args, **kwargs)

    def _look_at(self, images):
        """Warn once about images that were not prepared."""
        if not self._has_seen_images:
            self._has_seen_images = warn_about_values(self.name, images)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any) -> Any:
        """Run the model. Images whose size is known at run time only are refused there if they have another one."""
        if keras.backend.backend() == "tensorflow" and None in tuple(inputs.shape)[1:]:
            import tensorflow as tf

            inputs = tf.ensure_shape(inputs, self.inputs[0].shape)
        return super().call(inputs, training=training, mask=mask, **kwargs)

    def _check_images(self, images):
        shape, expected = tuple(getattr(images, "shape", ())), tuple(self.inputs[0].shape)
        agrees = len(shape) == len(expected) and all(
            got is None or want is None or got == want for got, want in zip(shape, expected, strict=True)
        )
        if not agrees:
            raise ValueError(
                f"{type(self).__name__} {self.name!r} takes images of shape {expected} "
                f"[batch, height, width, channels]. Received: {shape}. Resize the images, or build the model with "
                f"`image_size` (None for any size) and `channels` as your images have them."
            )

    def quantize(
        self, mode: str | None = None, config: Any = None, filters: Filters | None = None, **kwargs: Any
    ) -> None:
        """Quantize the dense layers; see `keras.Model.quantize`. Layers that cannot be quantized stay as they are."""

        def can_quantize(layer):
            implemented = type(layer).quantize is not keras.layers.Layer.quantize
            return implemented and (filters is None or _matches(layer, filters))

        super().quantize(mode, config=config, filters=can_quantize, **kwargs)

    def export(self, *args: Any, **kwargs: Any) -> None:
        """Write the model for serving; see `keras.Model.export`. The file holds no backward passes."""
        with kernels.mode("plain"):
            super().export(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments, and what was done to the layers since: frozen, quantized or replaced."""
        policy = self.dtype_policy
        simple = type(policy) is keras.dtype_policies.DTypePolicy
        config = {
            **self.config.to_dict(),
            "name": self.name,
            "dtype": policy.name if simple else keras.dtype_policies.serialize(policy),
        }
        if not self.trainable:
            config["trainable"] = False
        changes = {layer.name: find_changes(layer, self.trainable) for layer in self.layers}
        changes = {name: found for name, found in changes.items() if found}
        return {**config, "layers": changes} if changes else config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        """Build a model from what `get_config` returned."""
        config = dict(config)
        trainable = config.pop("trainable", True)
        changes = config.pop("layers", {})
        frozen = config.pop("frozen_layers", ())  # of files written before sublayers were looked at
        changes |= {name: {"trainable": False} for name in frozen}
        model = cls(**config)
        if not trainable:
            model.trainable = False
        for layer in model.layers:
            restore_changes(layer, changes.get(layer.name, {}))
        return model


def _matches(layer: keras.layers.Layer, filters: Filters) -> bool:
    """Return whether a layer is meant by the `filters` of `keras.Model.quantize`."""
    if callable(filters):
        return bool(filters(layer))
    patterns = [filters] if isinstance(filters, str) else filters
    return any(re.search(pattern, layer.name) for pattern in patterns)


def resolve_policy(dtype: str | dict[str, Any] | keras.DTypePolicy | None) -> keras.DTypePolicy:
    """Return the dtype policy of a `dtype` argument: a policy, its name or configuration; the global one for None."""
    if isinstance(dtype, dict):
        return keras.dtype_policies.deserialize(dtype)
    return keras.dtype_policies.get(dtype) if dtype is not None else keras.config.dtype_policy()


def images_input(config: Config, policy: keras.DTypePolicy) -> keras.KerasTensor:
    """Return the symbolic images of a model."""
    return keras.Input(config.image_shape, dtype=policy.compute_dtype, name="images")


def head_layer(config: Config, policy: keras.DTypePolicy, name: str = "head") -> keras.layers.Layer:
    """Return the classification layer: zero kernel and constant bias, as the reference initializes it."""
    return keras.layers.Dense(
        config.classes,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(config.head_bias),
        dtype=policy,
        name=name,
    )


def batch_norm(policy: keras.DTypePolicy, name: str) -> keras.layers.Layer:
    """Return a batch norm without scale and offset, with PyTorch's momentum and MAE's epsilon."""
    return keras.layers.BatchNormalization(
        momentum=0.9, epsilon=1e-6, center=False, scale=False, dtype=policy, name=name
    )


def predictions(config: Config, logits: keras.KerasTensor) -> keras.KerasTensor:
    """Return the output of a model: logits, or what the activation of the classifier makes of them in float32."""
    if config.classifier_activation is None:
        return logits
    return keras.layers.Activation(config.classifier_activation, dtype="float32", name="predictions")(logits)
