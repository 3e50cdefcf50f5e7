"""Base class of layers that are made of layers."""

from typing import Any

import keras

from keras_vit.layers.base import BaseLayer

_OF_KERAS = ("_layers", "_modules", "_self_")  # attributes in which Keras and its backends list all sublayers


@keras.saving.register_keras_serializable(package="keras_vit")
class CompositeLayer(BaseLayer):
    """Layer whose sublayers may change after it was built, and are saved as they are then.

    A sublayer can be frozen, quantized, given LoRA by `enable_lora`, or replaced by assigning another layer to its
    attribute or to its place in a list. `get_config` returns these changes, and `build` makes them again in a layer
    that was loaded.

    Args:
        sublayers: Changes of sublayers by attribute name, as `get_config` returns them.
    """

    def __init__(self, sublayers: dict[str, Any] | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self._loaded_changes = {} if sublayers is None else sublayers
        self._built_with: tuple[str, ...] = ()
        self._replaced: set[str] = set()

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Finish building: subclasses call this when all sublayers are built."""
        for name, value in list(self.__dict__.items()):
            if _is_list_of_layers(name, value):
                self.__dict__[name] = _replaceable(self, name, value)
        sublayers = _sublayers(self)
        self._built_with = tuple(sublayers)
        if not self.trainable:
            for layer in sublayers.values():
                layer.trainable = False
        restore_changes(self, {"sublayers": self._loaded_changes})
        self.built = True

    def __setattr__(self, name, value):
        if isinstance(value, keras.layers.Layer):
            old = _attributes(self).get(name)
            if isinstance(old, keras.layers.Layer) and value is not old:
                self._track_instead(name, old, value)
        super().__setattr__(name, value)

    def _track_instead(self, name, old, new):
        """Track another sublayer in the place of one, which Keras would refuse in a built layer."""
        self._replaced.add(name)
        self._tracker.unlock()
        own = {key: value for key, value in _attributes(self).items() if not key.startswith(_OF_KERAS)}
        if _count(own, old) == 1:  # else another attribute, or place in a list, still has it
            self._tracker.untrack(old)
        self._tracker.track(new)
        if self.built:
            self._tracker.lock()

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        changes = find_changes(self).get("sublayers")
        return {**config, "sublayers": changes} if changes else config


def find_changes(layer: keras.layers.Layer, trainable: bool | None = None) -> dict[str, Any]:
    """Return the changes of a layer since it was built, in values that JSON keeps.

    `trainable` says whether the layer's parent is trainable: the layer's own state is returned only if it differs.
    """
    changes: dict[str, Any] = {}
    if trainable is not None and layer.trainable != trainable:
        changes["trainable"] = layer.trainable
    if layer.quantization_mode is not None and getattr(layer, "quantization_config", None) is not None:
        changes["quantization"] = keras.saving.serialize_keras_object(layer.quantization_config)
    if getattr(layer, "lora_enabled", False):
        changes["lora"] = {"rank": layer.lora_rank, "lora_alpha": layer.lora_alpha}
    if isinstance(layer, CompositeLayer):
        sublayers = _sublayers(layer)
        missing = set(layer._built_with) - set(sublayers)
        if missing:
            raise ValueError(
                f"The layer {layer.name!r} cannot be saved without its sublayers {sorted(missing)}. Replace a sublayer "
                "by `keras.layers.Identity()` instead of removing it."
            )
        found = {
            name: keras.saving.serialize_keras_object(sublayer)
            if name in layer._replaced
            else find_changes(sublayer, layer.trainable)
            for name, sublayer in sublayers.items()
        }
        if any(found.values()):
            changes["sublayers"] = {name: change for name, change in found.items() if change}
    return changes


def restore_changes(layer: keras.layers.Layer, changes: dict[str, Any]) -> None:
    """Make the changes that `find_changes` found to a layer that is built as its arguments say."""
    if "trainable" in changes:
        layer.trainable = changes["trainable"]
    if "quantization" in changes and layer.quantization_mode is None:
        layer.quantize(config=keras.saving.deserialize_keras_object(changes["quantization"]))
    if "lora" in changes and not layer.lora_enabled:
        layer.enable_lora(**changes["lora"])
    for name, change in changes.get("sublayers", {}).items():
        if "class_name" not in change:
            restore_changes(_sublayers(layer)[name], change)
            continue
        sublayer = keras.saving.deserialize_keras_object(change)
        attribute, _, index = name.partition(".")
        if index:
            getattr(layer, attribute)[int(index)] = sublayer
        else:
            setattr(layer, name, sublayer)


def _sublayers(layer: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
    """Return the layers that are a layer's attributes, or elements of a list that is an attribute, by name."""
    found = {}
    for name, value in _attributes(layer).items():
        if isinstance(value, keras.layers.Layer):
            found[name] = value
        elif _is_list_of_layers(name, value):
            found |= {f"{name}.{i}": item for i, item in enumerate(value) if isinstance(item, keras.layers.Layer)}
    return found


def _attributes(layer: keras.layers.Layer) -> dict[str, Any]:
    """Return the attributes of a layer; PyTorch keeps those that are modules in a dictionary of their own."""
    return {**vars(layer), **vars(layer).get("_modules", {})}


def _count(value: Any, layer: keras.layers.Layer) -> int:
    """Return how often a layer occurs in nested lists, tuples, sets and dictionaries."""
    if isinstance(value, dict):
        value = list(value.values())
    return sum(_count(item, layer) for item in value) if isinstance(value, (list, tuple, set)) else value is layer


def _is_list_of_layers(name: str, value: Any) -> bool:
    is_list = isinstance(value, list) and not name.startswith("_")
    return is_list and any(isinstance(item, keras.layers.Layer) for item in value)


class _ReplaceableElements(list):
    """Mixin of Keras' list of tracked layers: assigning an element replaces a sublayer of the layer that owns it."""

    owner: CompositeLayer
    name: str

    def __setitem__(self, index, layer):
        index = range(len(self))[index]  # a slice ends with an error here
        self.owner._track_instead(f"{self.name}.{index}", self[index], layer)
        super().__setitem__(index, layer)


def _replaceable(owner: CompositeLayer, name: str, layers: list[keras.layers.Layer]) -> list[keras.layers.Layer]:
    """Return a list of sublayers as a list whose elements can be replaced."""
    found = type("Sublayers", (_ReplaceableElements, type(layers)), {})(layers, owner._tracker)
    found.owner, found.name = owner, name
    return found
