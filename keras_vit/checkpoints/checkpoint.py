"""A checkpoint whose project is known: the names of its tensors, their variables, and the model they belong to."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from keras_vit.checkpoints.architecture import TABLE
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.rules import Binding
from keras_vit.models import BiTConfig, BiTResNet, MAEConfig, MaskedAutoencoder, VisionTransformer, ViTConfig
from keras_vit.models.config import Config
from keras_vit.models.normalization import Normalization
from keras_vit.models.resizing import Resizing
from keras_vit.zoo import PublishedWeights

Shape = tuple[int, ...]
Grid = tuple[int, int]  # height and width in patches


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
    """Facts about a file that the caller knows."""

    wanted: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # arguments of the model that is loaded
    grid: Grid | None = None  # of the file's position table
    prefix: str | None = None  # of the names of one of several models in a file; None for the only or usual one


@dataclasses.dataclass(frozen=True)
class Layout:
    """Names and shapes that a project gives its tensors, kept so that a model is written as it was read."""

    family: str
    style: str = ""  # the family's naming scheme
    position: str = ""  # stored name of the position table
    slots: str = "prefix"  # tokens with entries in the table: "all" (registers too), "prefix" (all but them), "none"
    group_norm_4d: bool = False  # whether group norm parameters have the shape [1, 1, 1, C]
    stacked: bool = False  # whether one tensor holds the blocks' values
    block_names: tuple[tuple[str, str], ...] = ()  # modules of a block, as (stored name, variable's name)
    map_names: tuple[tuple[str, str], ...] = ()  # modules of the attention pooling, likewise
    prefix: str = ""  # of the names of the model's body
    outer: str = ""  # of the names of the whole model, where its head is beside the body
    decoder_heads: int = 0  # of each block of a masked autoencoder's decoder
    renamed: tuple[tuple[str, str], ...] = ()  # deviations from the scheme, as (the scheme's name, stored name)


@dataclasses.dataclass
class Checkpoint:
    """A file whose family and architecture are known. No tensor has been read yet."""

    source: TensorSource
    layout: Layout
    bindings: list[Binding]  # the variables that its tensors become
    shapes: dict[str, Shape]  # of the variables, from the file
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the model's constructor
    frozen: dict[str, Any] = dataclasses.field(default_factory=dict)  # arguments of `from_config`: the frozen layers
    assumed: dict[str, str] = dataclasses.field(default_factory=dict)  # arguments not in the file, with the reason
    doubtful: dict[str, str] = dataclasses.field(default_factory=dict)  # those that change outputs, with a warning
    unexpected: list[str] = dataclasses.field(default_factory=list)  # tensors that become no variable
    ignored: list[str] = dataclasses.field(default_factory=list)  # tensors left out on purpose (an optimizer's state)
    grid: Grid | None = None  # of the position table, if known
    class_names: tuple[str, ...] | None = None
    values: dict[str, Any] | None = None  # of a `.keras` file, see `ConfiguredModel.values`
    kind: str = "vit"  # of the model: one of KINDS
    alternatives: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)  # values that suit the file, too
    input_normalization: Normalization | None = None  # if the file or its project states it
    entry: PublishedWeights | None = None  # of the published weights that the file was named by
    resizing: Resizing | None = None  # of image files, if a file beside the tensors states it
    resize_method: str = ""  # of position tables, where the models of a project differ

    @property
    def num_positions(self) -> int | None:
        """Number of patches in the position table; None without one."""
        prefix = sum(name in self.shapes for name in ("cls/cls", "dist/dist"))
        return self.shapes[TABLE][1] - prefix if TABLE in self.shapes else None

    def allow_any_head(self) -> None:
        """Let models of any pooling take an encoder whose head belongs to the model that is fine-tuned."""
        self.alternatives |= dict.fromkeys(ViTConfig.OF_HEAD, ANY)

    def name_classes(self, names: Any) -> None:
        """Take the names of the classes, if they are a list of a name for each class. A given head has any number."""
        is_given = self.arguments.get("head") is not None
        if isinstance(names, list) and (is_given or len(names) == self.arguments.get("classes")):
            self.class_names = tuple(map(str, names))

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
            raise CheckpointError(f"{source.path}: {stored} cannot become {binding.variables} ({error}).") from error
        shapes.update(zip(binding.variables, results, strict=True))
    return shapes
