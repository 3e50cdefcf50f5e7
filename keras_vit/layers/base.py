"""Base class of all layers."""

import functools
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

import keras

Part = TypeVar("Part", bound="BaseLayer")


class BaseLayer(keras.layers.Layer):
    """Layer that is saved as the arguments of its constructor: each is an attribute of the same name.

    Attributes:
        parts: Classes of layers within, and the names that their arguments have here. A layer takes the other arguments
            of these classes, too, and hands them on: an option of a part is written down in the part alone.
    """

    parts: ClassVar[Mapping[type["BaseLayer"], Mapping[str, str]]] = {}

    def __init__(self, **kwargs: Any):
        handed_on = {name: kwargs.pop(name) for name in self.argument_names() if name in kwargs}
        super().__init__(**kwargs)
        for name, value in handed_on.items():
            setattr(self, name, value)

    @classmethod
    @functools.cache
    def argument_names(cls) -> tuple[str, ...]:
        """Return the names of the constructors' arguments, those of base classes and of parts included."""
        names: list[str] = []
        for owner in cls.__mro__:
            if issubclass(owner, BaseLayer) and "__init__" in vars(owner):
                parameters = list(inspect.signature(owner.__init__).parameters.values())[1:]  # without self
                names += [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        for part, renamed in cls.parts.items():
            names += [name for name in part.argument_names() if name not in renamed]
        return tuple(dict.fromkeys(names))

    @classmethod
    def of(cls, source: Any, **arguments: Any) -> Self:
        """Return a layer with the arguments that `source` has as attributes of the same names, and with `arguments`.

        Args:
            source: Configuration of a model.
            **arguments: Arguments that are not those of the configuration.
        """
        found = {name: getattr(source, name) for name in cls.argument_names() if hasattr(source, name)}
        return cls(**{**found, **arguments})

    def part(self, part: type[Part], name: str) -> Part:
        """Return a layer within, with the arguments that this layer has for it; see `parts`."""
        names = {theirs: self.parts[part].get(theirs, theirs) for theirs in part.argument_names()}
        found = {theirs: getattr(self, ours) for theirs, ours in names.items() if hasattr(self, ours)}
        return part(**found, dtype=self.dtype_policy, name=name)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructors of the class and of its base classes."""
        config = super().get_config()
        for name in self.argument_names():
            if hasattr(self, name):
                value = getattr(self, name)
                is_initializer = isinstance(value, keras.initializers.Initializer)
                config[name] = keras.initializers.serialize(value) if is_initializer else value
        return config
