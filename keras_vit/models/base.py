"""What all models of the package share: a functional model that is its constructor's arguments."""

import keras


class ConfiguredModel(keras.Model):
    """A functional model that serialises as the arguments of its constructor.

    `type(model).from_config({**model.get_config(), "image_size": 384})` builds the same architecture with one argument
    changed. Frozen layers stay frozen in saved models and clones.
    """

    def __init__(self, inputs, outputs, arguments, name, dtype_policy):
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.dtype_policy = dtype_policy
        self._arguments = arguments

    def __call__(self, inputs, *args, **kwargs):
        """Checks the images' shape before Keras does, whose message does not say what to do; then runs the model."""
        self._check_images(inputs)
        return super().__call__(inputs, *args, **kwargs)

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

    def get_config(self):
        """Returns the constructor's arguments."""
        policy = self.dtype_policy
        simple = type(policy) is keras.dtype_policies.DTypePolicy
        config = {
            **self._arguments,
            "name": self.name,
            "dtype": policy.name if simple else keras.dtype_policies.serialize(policy),
        }
        frozen = [layer.name for layer in self.layers if not layer.trainable]
        return {**config, "frozen_layers": frozen} if frozen else config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Builds a model from what `get_config` returned."""
        config = dict(config)
        frozen = config.pop("frozen_layers", ())
        model = cls(**config)
        for layer in model.layers:
            if layer.name in frozen:
                layer.trainable = False
        return model


def resolve_policy(dtype):
    """Returns the dtype policy of a `dtype` argument: a policy, its name or configuration; the global one for None."""
    if isinstance(dtype, dict):
        return keras.dtype_policies.deserialize(dtype)
    return keras.dtype_policies.get(dtype) if dtype is not None else keras.config.dtype_policy()


def head_layer(classes, bias, policy, name="head"):
    """Returns the classification layer: zero kernel and constant bias, as the reference starts it."""
    return keras.layers.Dense(
        classes,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(bias),
        dtype=policy,
        name=name,
    )
