"""Interface of a family: one project's way to name, shape and describe the tensors of a model."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from keras_vit.checkpoints.checkpoint import ANY, Checkpoint, Hints, Layout
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.rules import Rule
from keras_vit.models.normalization import Normalization

Config = Mapping[str, Any]
Names = tuple[str, ...] | None  # of the classes
Files = dict[str, dict[str, Any]]  # JSON objects by file name
# Returns the configuration files of a model from its arguments, layout, class names and normalization.
Documents = Callable[[Config, Layout, Names, Normalization], Files]


@dataclasses.dataclass(frozen=True)
class Writing:
    """How a family writes models.

    Attributes:
        values: Values of an argument that the project's own readers can rebuild; `ANY` for all of them, or where
            `conditions` check it. They know the default alone of an option that is not named.
        conditions: Pairs of a function that tells whether a model cannot be rebuilt, and the reason.
        layout: Returns the layout of a model that was not read from this family.
        fit: Adapts the layout that was read to the model's arguments, which may have changed since.
        styles: Naming schemes to choose from, as functions that change a layout.
        can_stack: Whether the blocks can be stacked.
        tensors: Format of the tensors, `"npz"` or `"safetensors"`.
        documents: Returns the configuration files by name.
    """

    values: Mapping[str, tuple[Any, ...]]
    layout: Callable[[Config], Layout]
    conditions: tuple[tuple[Callable[[Config], bool], str], ...] = ()
    fit: Callable[[Layout, Config], Layout] = lambda layout, config: layout
    styles: Mapping[str, Callable[[Layout], Layout]] = dataclasses.field(default_factory=dict)
    can_stack: bool = False
    tensors: Literal["npz", "safetensors"] = "npz"
    documents: Documents | None = None

    def reasons(self, config: Config, options: Config) -> list[str]:
        """Return why the project's readers could not rebuild a model with equal outputs."""
        allowed = {**{name: (default,) for name, default in options.items()}, **self.values}
        reasons = [
            f"{name}={config[name]!r} (it can hold {' or '.join(map(repr, values))})"
            for name, values in allowed.items()
            if not _is_among(name, config, values)
        ]
        return reasons + [reason for applies, reason in self.conditions if applies(config)]


def _is_among(name: str, config: Config, allowed: tuple[Any, ...]) -> bool:
    if name == "resnet_numerics" and config.get("resnet_blocks") is None:
        return True
    value = config[name]
    return allowed is ANY or any(value == item and type(value) is type(item) for item in allowed)


@dataclasses.dataclass(frozen=True)
class Family:
    """All that is known of one project's checkpoints.

    Attributes:
        name: Name of the family, which is the `format` of `save_checkpoint`.
        recognize: Returns the checkpoint that a file holds, or None for another project's file.
        rules: Returns the rules of one of the family's layouts.
        kind: `"vit"`, `"bit"` or `"mae"`.
        resize_method: How the project resizes position tables.
        input_normalization: Mean and deviation of the input of every model of the project; None if models differ.
        writing: How models are written; None for a family that is only read.
    """

    name: str
    recognize: Callable[[TensorSource, Hints], Checkpoint | None]
    rules: Callable[[Layout], list[Rule]]
    kind: str = "vit"
    resize_method: str = "reference"
    input_normalization: Normalization | None = None
    writing: Writing | None = None
