"""The interface of a family: how one project names, shapes and describes the tensors of a model."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
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
GIVEN = ("another value",)  # all values of an argument except None


@dataclasses.dataclass(frozen=True)
class Writing:
    """The models that a family can write, and the way in which it writes them."""

    # For each argument, the values that the project's own code can rebuild. `ANY` allows all values, unless `limits`
    # restricts the argument. `GIVEN` allows all values except None. Options that are not listed must have their default
    # value.
    values: Mapping[str, tuple[Any, ...]]
    layout: Callable[[Config], Layout]  # of a model that was not read from this family
    limits: Callable[[Config], Iterable[str]] = lambda config: ()  # further reasons why a model cannot be rebuilt
    fit: Callable[[Layout, Config], Layout] = lambda layout, config: layout  # adapts a layout to the model
    styles: Mapping[str, Callable[[Layout], Layout]] = dataclasses.field(default_factory=dict)  # naming schemes
    can_stack: bool = False  # whether the format can stack the blocks
    tensors: Literal["npz", "safetensors"] = "npz"
    documents: Documents | None = None  # the configuration files

    def reasons(self, config: Config, options: Config) -> list[str]:
        """Return the reasons why the project's own code cannot rebuild a model with equal outputs."""
        allowed = {**{name: (default,) for name, default in options.items()}, **self.values}
        reasons = [
            f"{name}={config[name]!r} (supported: {' or '.join(map(repr, values))})"
            for name, values in allowed.items()
            if not _is_among(name, config, values)
        ]
        return [*reasons, *self.limits(config)]


def _is_among(name: str, config: Config, allowed: tuple[Any, ...]) -> bool:
    unused = name == "resnet_numerics" and config.get("resnet_blocks") is None
    value = config[name]
    if allowed is ANY or allowed is GIVEN:
        return allowed is ANY or value is not None
    return unused or value in allowed


@dataclasses.dataclass(frozen=True)
class Family:
    """Reading and writing of one project's checkpoints."""

    name: str  # the `format` of `save_checkpoint`
    recognize: Callable[[TensorSource, Hints], Checkpoint | None]  # returns None for the files of other projects
    rules: Callable[[Layout], list[Rule]]  # returns the rules of a layout
    kind: str = "vit"  # of the models, a key of `KINDS`
    resize_method: str = "reference"  # of position tables
    input_normalization: Normalization | None = None  # of all models of the project; None if the models differ
    writing: Writing | None = None  # None for a family that is only read
    layouts: tuple[Layout, ...] = ()  # the layouts whose module names occur in adapters
