"""A checkpoint whose project is known: the names of its tensors, their variables, and the model they belong to."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import keras
from absl import logging

from keras_vit.checkpoints.architecture import TABLE, is_square
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.rules import Binding
from keras_vit.models import BiTConfig, BiTResNet, MAEConfig, MaskedAutoencoder, VisionTransformer, ViTConfig, geometry
from keras_vit.models.config import Config, plain
from keras_vit.models.normalization import Normalization

Shape = tuple[int, ...]
Grid = tuple[int, int]
_MAX_SIZE = 2**31  # of an image edge in pixels


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of model: its name in messages, its class, and the class of its arguments."""

    noun: str
    model: type[keras.Model]
    config: type[Config]


class _Any(tuple[Any, ...]):
    """All values of an argument."""

    def __contains__(self, value: object) -> bool:
        return True


ANY: tuple[Any, ...] = _Any()
KINDS = {
    "vit": Kind("Vision Transformer", VisionTransformer, ViTConfig),
    "bit": Kind("BiT ResNet", BiTResNet, BiTConfig),
    "mae": Kind("masked autoencoder", MaskedAutoencoder, MAEConfig),
}


@dataclasses.dataclass(frozen=True)
class Hints:
    """Facts about a file that the caller knows.

    Attributes:
        wanted: Arguments of the model that the weights are for.
        grid: (height, width) of the file's position table, in patches.
        prefix: Where a Flax file's tree of parameters begins; None for the usual places.
    """

    wanted: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: Grid | None = None
    prefix: str | None = None

    def model_grid(self, arguments: Mapping[str, Any]) -> Grid | None:
        """Return the grid of the wanted model, if its image size is known."""
        return grid_of({**arguments, **self.wanted}) if "image_size" in self.wanted else None

    def stated_grids(self, source: TensorSource, arguments: Mapping[str, Any]) -> list[Grid]:
        """Return the grids that the caller and the file state, the most reliable first."""
        note = source.metadata
        sizes = (arguments.get("image_size"), note.get("image_size"), note.get("image"))
        grids = [self.grid, stated_size(note.get("grid"))]
        grids += [grid_of({**arguments, "image_size": size}) for size in sizes if stated_size(size)]
        return [grid for grid in grids if grid is not None]


def stated_size(value: Any) -> tuple[int, int] | None:
    """Return (height, width) of an integer or a pair in a file, None for anything else."""
    sizes = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    good = len(sizes) == 2 and all(type(size) is int and 0 < size <= _MAX_SIZE for size in sizes)
    return sizes if good else None


def grid_of(arguments: Mapping[str, Any]) -> Grid | None:
    """Return the grid of a model's position table, None if its images are not a whole number of patches."""
    names = ("patch_size", "resnet_blocks", "image_size", "position_grid")
    try:
        return geometry.grid(**{name: arguments[name] for name in names if name in arguments})
    except (TypeError, ValueError, ArithmeticError):
        return None


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
        input_normalization: Mean and deviation of the input, if the file or its project states them.
        resize_method: How the project resizes position tables.
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
    input_normalization: Normalization | None = None
    resize_method: str = "reference"

    @property
    def num_positions(self) -> int | None:
        """Number of patches in the position table; None without one."""
        prefix = sum(name in self.shapes for name in ("cls/cls", "dist/dist"))
        return self.shapes[TABLE][1] - prefix if TABLE in self.shapes else None

    def allow_any_head(self) -> None:
        """Let models of any pooling take an encoder whose head belongs to the model that is fine-tuned."""
        self.alternatives |= dict.fromkeys(ViTConfig.OF_HEAD, ANY)

    @property
    def path(self) -> str:
        """Name of the file, for messages."""
        return self.source.path


def variable_shapes(source: TensorSource, bindings: Iterable[Binding], heads: int) -> dict[str, Shape]:
    """Return the shapes of the variables that the bindings would give, with a number of heads if no tensor shows it."""
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


def settle_grid(checkpoint: Checkpoint, hints: Hints) -> None:
    """Set the grid of the position table and with it the image size.

    The table is a list: 25 entries are a class token and 4 x 6 patches, or 5 x 5 patches. The caller decides, then the
    file, then the model if its table is as long, and at last a square is assumed.
    """
    source, arguments, path = checkpoint.source, checkpoint.arguments, checkpoint.path
    count = checkpoint.num_positions
    if count is None and hints.grid is not None:
        raise CheckpointError(f"{path} has no position table. Received: grid={hints.grid}. Leave it out.")
    if checkpoint.kind == "bit":
        return
    noted = [size for name in ("image_size", "image") if (size := stated_size(source.metadata.get(name)))]
    own = arguments.get("image_size")
    if own is not None and stated_size(own) is None:
        raise CheckpointError(f"{path}: image_size must be an integer or (height, width). Received: {str(own)[:60]}.")
    if count is None:
        arguments.setdefault("image_size", plain(noted[0]) if noted else None)
        if arguments["image_size"] is None:
            checkpoint.assumed["image_size"] = "without a position table nothing fixes it"
        return
    own_grid = grid_of(arguments) if "image_size" in arguments else None
    stated = {
        "grid": hints.grid,
        "the grid in its note": stated_size(source.metadata.get("grid")),
        f"image_size={str(own)[:60]} of its configuration": own_grid or ((0, 0) if own is not None else None),
    }
    for name, grid in stated.items():
        if grid is not None and math.prod(grid) != count:
            raise CheckpointError(
                f"{path}: {name} and the position table disagree: the grid {grid} has {math.prod(grid)} patches, the "
                f"table {count}. Damaged?"
            )
    if checkpoint.layout.family == "keras" and own_grid is not None:
        if hints.grid not in (None, own_grid):
            raise CheckpointError(
                f"{path}: its table has the grid {own_grid}. Received: grid={hints.grid}. Leave it out."
            )
        checkpoint.grid = own_grid  # image_size may be None, for images of any size
        return
    checkpoint.grid = _choose_grid(count, hints.stated_grids(source, arguments), hints.model_grid(arguments), path)
    if own_grid == checkpoint.grid:
        return
    fitting = [size for size in noted if grid_of({**arguments, "image_size": size}) == checkpoint.grid]
    stride = geometry.stride(arguments["patch_size"], arguments.get("resnet_blocks"))
    size = (checkpoint.grid[0] * stride[0], checkpoint.grid[1] * stride[1])
    arguments["image_size"] = plain(fitting[0] if fitting else size)


def _choose_grid(count: int, stated: list[Grid], model: Grid | None, path: str) -> Grid:
    for grid in [*stated, *([model] if model else [])]:
        if math.prod(grid) == count:
            return grid
    if not is_square(count):
        raise CheckpointError(
            f"{path}: its {count} position embeddings form no square grid, and the file does not say which one they "
            "form. Pass grid=(height, width), in patches."
        )
    grid = (math.isqrt(count),) * 2
    logging.info("%s does not say the grid of its %d position embeddings: %dx%d is assumed.", path, count, *grid)
    return grid
