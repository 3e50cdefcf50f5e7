"""Base class of all layers, and a type of their signatures."""

import inspect
from typing import Any, Self, TypeAlias

import keras

Shape: TypeAlias = tuple[Any, ...]  # sizes of a tensor, None for those that are unknown


class BaseLayer(keras.layers.Layer):
    """Layer that is saved as the arguments of its constructor: each is an attribute of the same name.

    Attributes:
        is_block: Whether the layer is one deeper for learning rates that fall from the head down.
        is_embedding: Whether it is among the first layers for these rates.
    """

    is_block = is_embedding = False

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructors of the class and of its base classes."""
        config = super().get_config()
        for name in _argument_names(type(self)):
            if hasattr(self, name):
                value = getattr(self, name)
                if isinstance(value, (keras.initializers.Initializer, keras.layers.Layer)):
                    value = keras.saving.serialize_keras_object(value)
                    value.pop("build_config", None)  # a sublayer is built with its layer, whose name its weights have
                config[name] = value
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return a layer with these arguments. Layers among them are in their serialized form."""
        return cls(
            **{
                name: keras.saving.deserialize_keras_object(value) if _is_serialized(value) else value
                for name, value in config.items()
            }
        )


def _is_serialized(value: Any) -> bool:
    return isinstance(value, dict) and "class_name" in value


def _argument_names(cls: type) -> tuple[str, ...]:
    """Return the names of the arguments of the constructors of a class and of its base classes."""
    names: list[str] = []
    for owner in cls.__mro__:
        if issubclass(owner, BaseLayer) and "__init__" in vars(owner):
            parameters = list(inspect.signature(owner.__init__).parameters.values())[1:]  # without self
            names += [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    return tuple(dict.fromkeys(names))
