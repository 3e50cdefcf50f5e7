"""Base class of all layers."""

import inspect
from typing import Any

import keras


class BaseLayer(keras.layers.Layer):
    """Layer that is saved as the arguments of its constructor: each is an attribute of the same name."""

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructors of the class and of its base classes."""
        config = super().get_config()
        for owner in type(self).__mro__:
            if issubclass(owner, BaseLayer) and "__init__" in vars(owner):
                for name in inspect.signature(owner.__init__).parameters:
                    if hasattr(self, name):
                        value = getattr(self, name)
                        is_initializer = isinstance(value, keras.initializers.Initializer)
                        config[name] = keras.initializers.serialize(value) if is_initializer else value
        return config
