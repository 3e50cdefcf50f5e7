"""Base class of all layers."""

import inspect
from typing import Any, Self, TypeAlias

import keras

Shape: TypeAlias = tuple[Any, ...]  # sizes of a tensor, None for an unknown size


class BaseLayer(keras.layers.Layer):
    """Layer whose configuration consists of its constructor arguments, each stored as an attribute of the same name.

    Attributes:
        is_block: Whether layer-wise learning rate decay counts the layer as one step of depth.
        is_embedding: Whether layer-wise learning rate decay treats the layer as one of the first layers.
    """

    is_block = is_embedding = False

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments of the class and its base classes."""
        config = super().get_config()
        for name in _argument_names(type(self)):
            if hasattr(self, name):
                value = getattr(self, name)
                if isinstance(value, (keras.initializers.Initializer, keras.layers.Layer)):
                    value = keras.saving.serialize_keras_object(value)
                    value.pop("build_config", None)  # the layer builds it, so that weight paths include its name
                config[name] = value
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Create a layer and its serialized sublayers from a configuration."""
        return cls(
            **{
                name: keras.saving.deserialize_keras_object(value) if _is_serialized(value) else value
                for name, value in config.items()
            }
        )


def _is_serialized(value: Any) -> bool:
    return isinstance(value, dict) and "class_name" in value


def _argument_names(cls: type) -> tuple[str, ...]:
    """Return the names of the constructor arguments of a class and its base classes."""
    names: list[str] = []
    for owner in cls.__mro__:
        if issubclass(owner, BaseLayer) and "__init__" in vars(owner):
            parameters = list(inspect.signature(owner.__init__).parameters.values())[1:]  # without self
            names += [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    return tuple(dict.fromkeys(names))
