"""Interface of a family: one project's way to name, shape and describe the tensors of a model."""

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
GIVEN = ("another value",)  # all values of an argument but None


@dataclasses.dataclass(frozen=True)
class Writing:
    """How a family writes models."""

    # Values of an argument that the project's own readers can rebuild; `ANY` for all of them, or where `limits` check
    # it, `GIVEN` for all but None. Of an option that is not named, they know only the default.
    values: Mapping[str, tuple[Any, ...]]
    layout: Callable[[Config], Layout]  # of a model that was not read from this family
    limits: Callable[[Config], Iterable[str]] = lambda config: ()  # further reasons why a model cannot be rebuilt
    fit: Callable[[Layout, Config], Layout] = lambda layout, config: layout  # of a layout that was read to the model
    styles: Mapping[str, Callable[[Layout], Layout]] = dataclasses.field(default_factory=dict)  # naming schemes
    can_stack: bool = False  # the blocks
    tensors: Literal["npz", "safetensors"] = "npz"
    documents: Documents | None = None  # the configuration files

    def reasons(self, config: Config, options: Config) -> list[str]:
        """Return why the project's readers could not rebuild a model with equal outputs."""
        allowed = {**{name: (default,) for name, default in options.items()}, **self.values}
        reasons = [
            f"{name}={config[name]!r} (it can hold {' or '.join(map(repr, values))})"
            for name, values in allowed.items()
            if not _is_among(name, config, values)
        ]
        return [*reasons, *self.limits(config)]


def _is_among(name: str, config: Config, allowed: tuple[Any, ...]) -> bool:
    unused = name == "resnet_numerics" and config.get("resnet_blocks") is None
    value = config[name]
    if allowed is ANY or allowed is GIVEN:
        return allowed is ANY or value is not None
    return unused or any(value == other and type(value) is type(other) for other in allowed)


@dataclasses.dataclass(frozen=True)
class Family:
    """All that is known of one project's checkpoints."""

    name: str  # the `format` of `save_checkpoint`
    recognize: Callable[[TensorSource, Hints], Checkpoint | None]  # None for the files of other projects
    rules: Callable[[Layout], list[Rule]]
    kind: str = "vit"  # of the models
    resize_method: str = "reference"  # of position tables
    input_normalization: Normalization | None = None  # of every model of the project; None if models differ
    writing: Writing | None = None  # None for a family that is only read
    layouts: tuple[Layout, ...] = ()  # the names of the modules in adapters
