"""How a family of checkpoints names and shapes its tensors."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.rules import Binding
from keras_vit.checkpoints.source import TensorSource


@dataclasses.dataclass(frozen=True)
class Layout:
    """One way to name and shape the tensors of a model, kept so that a model is written as it was read.

    Attributes:
        family: `"google"`, `"big_vision"`, `"huggingface"`, `"timm"` or `"keras"`.
        style: The family's naming scheme.
        position: Stored name of the position table.
        slots: Which prefix tokens have entries in the stored position table: `"all"`, `"prefix"` (all but registers)
            or `"none"`.
        group_norm_4d: Whether group norm parameters are stored `[1, 1, 1, C]`.
        stacked: Whether the blocks are stacked in one tensor.
        block_names: Modules of a block, as (stored name, variable's name).
        map_names: Modules of the attention pooling, likewise.
        prefix: What stands before the names of the model's body.
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
    renamed: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass
class Checkpoint:
    """A file whose family and architecture are known; no tensor has been read yet.

    Attributes:
        source: The open file.
        layout: How its tensors are named.
        bindings: How they correspond to variables.
        shapes: Shapes of the variables as the file has them.
        arguments: The constructor's arguments that reproduce the model.
        assumed: Arguments that the file does not hold, with the reason for the value taken.
        unexpected: Names that nothing corresponds to.
        ignored: Names that are left out on purpose, such as optimiser state.
        grid: (height, width) of the position table, if known.
        class_names: Names of the classes, if the file has them.
        kind: `"vit"` or `"bit"`.
        alternatives: Other values of an argument that the file's content suits as well.
    """

    source: TensorSource
    layout: Layout
    bindings: list[Binding]
    shapes: dict[str, tuple[int, ...]]
    arguments: dict[str, Any]
    assumed: dict[str, str] = dataclasses.field(default_factory=dict)
    unexpected: list[str] = dataclasses.field(default_factory=list)
    ignored: list[str] = dataclasses.field(default_factory=list)
    grid: tuple[int, int] | None = None
    class_names: tuple[str, ...] | None = None
    kind: str = "vit"
    alternatives: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)


def variable_shapes(source: TensorSource, bindings: Iterable[Binding], heads: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the variables that reading the bindings would give.

    Raises:
        CheckpointError: If a stored shape does not suit its rule.
    """
    shapes = {}
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
        if len(results) != len(binding.variables):
            raise CheckpointError(
                f"{source.path}: {binding.stored[0]!r} of shape {stored[binding.stored[0]]} should stack "
                f"{len(binding.variables)} blocks."
            )
        shapes.update(zip(binding.variables, results, strict=True))
    return shapes
