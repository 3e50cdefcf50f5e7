"""A checkpoint whose project is known: the names of its tensors, what they become, and the model they belong to."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.rules import Binding

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Names and shapes that a project gives its tensors, kept so that a model is written as it was read.

    Attributes:
        family: Name of the family.
        style: The family's naming scheme.
        position: Stored name of the position table.
        slots: Which prefix tokens have entries in the stored position table: `"all"` (registers too), `"prefix"` (all
            but registers) or `"none"`.
        group_norm_4d: Whether group norm parameters have the shape `[1, 1, 1, C]`.
        stacked: Whether one tensor holds the blocks' values.
        block_names: Modules of a block, as (stored name, variable's name).
        map_names: Modules of the attention pooling, likewise.
        prefix: Prefix of the names of the model's body.
        decoder_heads: Number of attention heads per block of a masked autoencoder's decoder.
        renamed: Tensors whose names deviate from the scheme, as (the scheme's name, stored name).
    """

    family: str
    style: str = ""
    position: str = ""
    slots: str = "prefix"
    group_norm_4d: bool = False
    stacked: bool = False
    block_names: tuple[tuple[str, str], ...] = ()
    map_names: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    decoder_heads: int = 0
    renamed: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass
class Checkpoint:
    """A file whose family and architecture are known. No tensor has been read yet.

    Attributes:
        source: The open file.
        layout: Names of its tensors.
        bindings: The variables that its tensors become.
        shapes: Shapes of the variables, from the file.
        arguments: Arguments of the constructor that builds the model.
        frozen: Arguments of `from_config` that say which layers are frozen.
        assumed: Arguments that the file does not hold, with the reason for the value.
        doubtful: Assumed arguments whose value changes the outputs, with a warning to give.
        unexpected: Tensors that become no variable.
        ignored: Tensors that are left out on purpose, such as the optimizer's state.
        grid: (height, width) of the position table, if known.
        class_names: Names of the classes, if the file has them.
        kind: `"vit"`, `"bit"` or `"mae"`, an encoder with its decoder.
        alternatives: Other values of an argument that agree with the file.
    """

    source: TensorSource
    layout: Layout
    bindings: list[Binding]
    shapes: dict[str, Shape]
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    frozen: dict[str, Any] = dataclasses.field(default_factory=dict)
    assumed: dict[str, str] = dataclasses.field(default_factory=dict)
    doubtful: dict[str, str] = dataclasses.field(default_factory=dict)
    unexpected: list[str] = dataclasses.field(default_factory=list)
    ignored: list[str] = dataclasses.field(default_factory=list)
    grid: tuple[int, int] | None = None
    class_names: tuple[str, ...] | None = None
    kind: str = "vit"
    alternatives: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    @property
    def path(self) -> str:
        """Name of the file, for messages."""
        return self.source.path


def variable_shapes(source: TensorSource, bindings: Iterable[Binding], heads: int) -> dict[str, Shape]:
    """Return the shapes of the variables that the bindings would give.

    Args:
        source: The open file.
        bindings: Stored tensors and their variables.
        heads: Number of attention heads, for tensors that do not show it.

    Raises:
        CheckpointError: If a stored shape does not suit its rule.
    """
    shapes: dict[str, Shape] = {}
    for binding in bindings:
        stored = {name: source.tensors[name].shape for name in binding.stored}
        for name, shape in stored.items():
            if 0 in shape:
                raise CheckpointError(f"{source.path}: tensor {name!r} of shape {shape} has no elements. Damaged?")
        try:
            results = binding.variable_shapes(stored, heads)
        except ValueError as error:
            raise CheckpointError(
                f"{source.path}: stored tensors with shapes {stored} cannot become "
                f"{', '.join(binding.variables)[:300]} ({error})."
            ) from error
        shapes.update(zip(binding.variables, results, strict=True))
    return shapes
