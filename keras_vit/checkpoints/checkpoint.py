"""A recognized checkpoint: its tensors, the corresponding variables, and the arguments of the model."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from keras_vit.checkpoints.architecture import TABLE
from keras_vit.checkpoints.formats.tensors import CheckpointError, TensorSource
from keras_vit.checkpoints.rules import Binding
from keras_vit.models import (
    BiTConfig,
    BiTResNet,
    MAEConfig,
    MaskedAutoencoder,
    VisionTransformer,
    ViTConfig,
    normalization,
)
from keras_vit.models.config import Config
from keras_vit.models.normalization import Normalization, operation
from keras_vit.models.resizing import Resizing
from keras_vit.util import checks
from keras_vit.zoo import PublishedWeights

Shape = tuple[int, ...]
Grid = tuple[int, int]  # height and width in patches


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of model: its name in messages, its class, and the class of its configuration."""

    noun: str
    model: type[keras.Model]
    config: type[Config]


class _Any(tuple[Any, ...]):
    """A tuple that contains every value."""

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
    """Facts about a file that the caller knows."""

    wanted: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # arguments of the model to load into
    grid: Grid | None = None  # of the file's position table
    prefix: str | None = None  # of the model in a file of several models; None for the only model or the usual prefix


@dataclasses.dataclass(frozen=True)
class Layout:
    """The naming scheme and the shapes of a file. Most projects have changed both over time.

    A layout selects the rules to read a file. The model keeps the layout, so that `save_checkpoint` writes the same
    names and shapes.
    """

    family: str
    style: str = ""  # the family's naming scheme
    position: str = ""  # stored name of the position table
    slots: str = "prefix"  # prefix tokens with entries in the table: "all", "prefix" (all but registers) or "none"
    group_norm_4d: bool = False  # whether group norm parameters have the shape [1, 1, 1, C]
    stacked: bool = False  # whether one tensor contains the values of all blocks
    block_names: tuple[tuple[str, str], ...] = ()  # modules of a block, as (stored name, variable's name)
    map_names: tuple[tuple[str, str], ...] = ()  # modules of the attention pooling, in the same form
    prefix: str = ""  # of the names of the body (the model without its head)
    outer: str = ""  # of the names of the head, if the head is outside the body
    decoder_heads: int = 0  # attention heads per block of a masked autoencoder's decoder
    renamed: tuple[tuple[str, str], ...] = ()  # deviations from the scheme, as (the scheme's name, stored name)


@dataclasses.dataclass
class Checkpoint:
    """A file whose family and architecture are known, but whose tensors have not been read yet."""

    source: TensorSource
    layout: Layout
    bindings: list[Binding]  # of tensors to variables
    shapes: dict[str, Shape]  # of the variables, computed from the file
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the model's constructor
    frozen: dict[str, Any] = dataclasses.field(default_factory=dict)  # arguments of `from_config`: the frozen layers
    assumed: dict[str, str] = dataclasses.field(default_factory=dict)  # assumed arguments, with the reason
    doubtful: dict[str, str] = dataclasses.field(default_factory=dict)  # assumed arguments that may change outputs
    unexpected: list[str] = dataclasses.field(default_factory=list)  # tensors without a variable
    ignored: list[str] = dataclasses.field(default_factory=list)  # tensors skipped on purpose (an optimizer's state)
    grid: Grid | None = None  # of the position table, if known
    class_names: tuple[str, ...] | None = None
    values: dict[str, Any] | None = None  # of a `.keras` file, see `ConfiguredModel.values`
    prediction_activation: str | None = None  # of a `.keras` file, see `ConfiguredModel.prediction_activation`
    kind: str = "vit"  # of the model: one of KINDS
    alternatives: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)  # other values that fit the file
    input_normalization: Normalization | None = None  # if the file or its project specifies it
    entry: PublishedWeights | None = None  # if the file was requested by the name of published weights
    resizing: Resizing | None = None  # of image files, if a file next to the tensors specifies it
    resize_method: str = ""  # of position tables, if the models of a project differ

    @property
    def num_positions(self) -> int | None:
        """Number of patches in the position table, or None without a table."""
        prefix = sum(name in self.shapes for name in ("cls/cls", "dist/dist"))
        return self.shapes[TABLE][1] - prefix if TABLE in self.shapes else None

    @property
    def normalization(self) -> str | None:
        """Operation that normalizes images for the model, or None if unknown."""
        return operation(self.input_normalization, self.arguments.get("input_range"))

    @property
    def evaluated_size(self) -> tuple[int, int] | None:
        """Image size (height, width) for evaluating the checkpoint, or None if its directory does not specify it.

        The published DINOv2 models have position tables for 518 pixels and are evaluated on 224 pixels. The result is
        also None for a size that is not a multiple of the patch size, because a model ignores the last pixels of such
        images.
        """
        if self.resizing is None:
            return None
        size, steps = self.resizing.size, checks.size_pair("", self.arguments.get("patch_size") or 1)
        return None if any(side % step for side, step in zip(size, steps, strict=True)) else size

    def allow_any_head(self) -> None:
        """Accept models with any pooling and head, because the weights of an encoder without a head fit all models."""
        self.alternatives |= dict.fromkeys(ViTConfig.OF_HEAD, ANY)

    def name_classes(self, names: Any) -> None:
        """Set the class names if there is one name for each class. A custom head may have any number of names."""
        is_given = self.arguments.get("head") is not None
        if isinstance(names, list) and (is_given or len(names) == self.arguments.get("classes")):
            self.class_names = tuple(map(str, names))

    @property
    def path(self) -> str:
        """Name of the file, for messages."""
        return self.source.path


def noted_preprocessing(note: Mapping[str, Any], where: str) -> tuple[Normalization | None, Resizing | None]:
    """Return the normalization and the resizing of images that this package has written to a file."""
    stated, resizing = note.get("input_normalization"), note.get("resizing")
    try:
        return (
            None if stated is None else normalization.resolve(stated),
            None if resizing is None else Resizing.from_dict(resizing),
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{where} is damaged: {error}") from error


def variable_shapes(source: TensorSource, bindings: Iterable[Binding], heads: int) -> dict[str, Shape]:
    """Compute the shapes of the variables.

    `heads` is the number of attention heads, for tensors whose shapes do not determine the number.
    """
    shapes: dict[str, Shape] = {}
    for binding in bindings:
        stored = {name: source.tensors[name].shape for name in binding.stored}
        for name, shape in stored.items():
            if 0 in shape:
                raise CheckpointError(f"{source.path}: tensor {name!r} of shape {shape} has no elements.")
        try:
            results = binding.variable_shapes(stored, heads)
        except ValueError as error:
            raise CheckpointError(f"{source.path}: {stored} cannot become {binding.variables} ({error}).") from error
        shapes.update(zip(binding.variables, results, strict=True))
    return shapes
