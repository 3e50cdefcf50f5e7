"""Base classes of all layers, and of layers with sublayers."""

import inspect
from typing import Any, Self, TypeAlias

import keras

from keras_vit.layers.keras_private import own_trainable_variables, stored_kernel

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


@keras.saving.register_keras_serializable(package="keras_vit")
class CompositeLayer(BaseLayer):
    """Layer that saves the changes made to its sublayers after `build`.

    Users can freeze a sublayer or a single weight, quantize a sublayer, and enable LoRA. `get_config` returns these
    changes, and `build` applies them again to a loaded layer. As in every Keras layer, the sublayers of a built layer
    cannot be replaced.

    Args:
        sublayers: Changes to sublayers by attribute name, as returned by `get_config`.
    """

    def __init__(self, sublayers: dict[str, Any] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self._loaded_changes = {} if sublayers is None else sublayers

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Finish building. Subclasses call this method after building all sublayers."""
        if not self.trainable:
            for layer in _sublayers(self).values():
                layer.trainable = False
        restore_changes(self, {"sublayers": self._loaded_changes})
        self.built = True

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        changes = find_changes(self).get("sublayers")
        return {**config, "sublayers": changes} if changes else config


def find_changes(layer: keras.layers.Layer, trainable: bool | None = None) -> dict[str, Any]:
    """Return a JSON-serializable description of the changes made to a layer after `build`.

    The layer's own state is included only if it differs from `trainable`, the state of its parent.
    """
    changes: dict[str, Any] = {}
    if trainable is not None and layer.trainable != trainable:
        changes["trainable"] = layer.trainable
    if layer.quantization_mode is not None and getattr(layer, "quantization_config", None) is not None:
        changes["quantization"] = keras.saving.serialize_keras_object(layer.quantization_config)
    if getattr(layer, "lora_enabled", False):
        changes["lora"] = {"rank": layer.lora_rank, "lora_alpha": layer.lora_alpha}
    own = {weight.name: weight.trainable for weight in own_weights(layer)}
    other = {name: flag for name, flag in own.items() if flag != layer.trainable}
    if other:
        changes["weights"] = other
    if isinstance(layer, CompositeLayer):
        found = {name: find_changes(sublayer, layer.trainable) for name, sublayer in _sublayers(layer).items()}
        if any(found.values()):
            changes["sublayers"] = {name: change for name, change in found.items() if change}
    return changes


def restore_changes(layer: keras.layers.Layer, changes: dict[str, Any]) -> None:
    """Apply changes recorded by `find_changes` to a newly built layer."""
    if "trainable" in changes:
        layer.trainable = changes["trainable"]
    if "quantization" in changes and layer.quantization_mode is None:
        layer.quantize(config=keras.saving.deserialize_keras_object(changes["quantization"]))
    if "lora" in changes and not layer.lora_enabled:
        layer.enable_lora(**changes["lora"])
    own = {weight.name: weight for weight in own_weights(layer)}
    for name, flag in changes.get("weights", {}).items():
        own[name].trainable = flag
    for name, change in changes.get("sublayers", {}).items():
        restore_changes(_sublayers(layer)[name], change)


def own_weights(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the weights that a layer itself can train, excluding sublayers and a kernel frozen by LoRA."""
    is_adapted = getattr(layer, "lora_enabled", False)
    return [weight for weight in own_trainable_variables(layer) if not (is_adapted and weight is stored_kernel(layer))]


def _sublayers(layer: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
    """Return the sublayers in a layer's attributes and lists, by name."""
    found = {}
    # PyTorch stores modules in a separate dictionary.
    for name, value in {**vars(layer), **vars(layer).get("_modules", {})}.items():
        if isinstance(value, keras.layers.Layer):
            found[name] = value
        elif isinstance(value, list) and not name.startswith("_"):
            found |= {f"{name}.{i}": item for i, item in enumerate(value) if isinstance(item, keras.layers.Layer)}
    return found
