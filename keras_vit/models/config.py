"""Arguments that all models share: names, types, defaults and checks.

Every argument is a dataclass field that is defined only once. `arguments.py` derives the signatures and the
documentation of all constructors from these fields.
"""

import dataclasses
import os
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import keras

from keras_vit.layers import get_activation
from keras_vit.util import checks
from keras_vit.zoo.variants import Size as Size

Auto = Literal["auto"]


@dataclasses.dataclass(frozen=True)
class Published:
    """First arguments of the constructor of a published variant, such as `ViT_B16`.

    Args:
        image_size: An integer, (height, width), or None for images of any size. `"auto"` selects the image size of the
            published weights, or 224 without weights.
        classes: Number of classes. `"auto"` selects the number of classes of the published weights, or 1000 without
            weights.
        weights: None for random initialization, the path of a checkpoint, or a name that `keras_vit.list_weights`
            returns for the variant. Published weights are downloaded once to Keras' cache. Position embeddings are
            resized to the model's grid. If the number of classes differs, the head keeps its initial values.
    """

    image_size: Size | Auto | None = "auto"
    classes: int | Auto | None = "auto"
    weights: str | os.PathLike | None = None


@dataclasses.dataclass(frozen=True)
class Sizes:
    """First arguments of a model that is not a published variant.

    Args:
        image_size: An integer, (height, width), or None for images of any size.
        classes: Number of classes.
    """

    image_size: Size | None = 224
    classes: int | None = 1000


@dataclasses.dataclass(frozen=True)
class Options:
    """Further arguments of every model.

    Args:
        include_top: Whether the model includes the classification head. Without the head, the output is the pooled
            representation.
        classifier_activation: Activation of the output, such as `"softmax"`, computed in float32. None for logits.
        name: Name of the model.
        dtype: Dtype policy or its name, such as `"mixed_bfloat16"`. None for the global policy.
        channels: Number of channels of the images.
        head_bias: Initial bias of the head.
        input_range: Pixel values of black and white, such as `(0, 255)`. The first layer then normalizes the images
            with the model's `input_normalization`, or to [-1, 1] if the normalization is unknown. None if the images
            are already normalized.
    """

    include_top: bool = True
    _: dataclasses.KW_ONLY
    classifier_activation: str | None = None
    name: str | None = dataclasses.field(default=None, compare=False)
    dtype: str | keras.DTypePolicy | None = dataclasses.field(default=None, compare=False)
    channels: int = 3
    head_bias: float = 0.0
    input_range: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class Config(Options, Sizes):
    """Arguments of a model; the base class of `ViTConfig` and `BiTConfig`.

    Attributes:
        COMMON: Arguments that the models of all projects have.
        FREE: Arguments that affect neither the weights nor the logits.
        head: Custom head layer, or None for the default head. A field of `ViTConfig`.
    """

    head = None  # type: Any

    COMMON: ClassVar[tuple[str, ...]] = ("channels", "classes", "include_top")
    FREE: ClassVar[tuple[str, ...]] = (
        *("image_size", "classifier_activation", "name", "dtype", "head_bias", "input_range"),
    )

    def __post_init__(self):
        for field in dataclasses.fields(self):
            choices = choices_of(field.type)
            if choices:
                checks.choice(field.name, getattr(self, field.name), choices)
        if self.image_size is not None:
            self._set("image_size", plain(checks.size_pair("image_size", self.image_size)))
        self._set("channels", checks.positive_int("channels", self.channels))
        if self.input_range is not None:
            self._set("input_range", checks.interval("input_range", self.input_range))
        self._set("head_bias", checks.any_number("head_bias", self.head_bias))
        if self.classifier_activation is not None:
            get_activation(self.classifier_activation, "classifier_activation")
        self._refuse(
            self.include_top and self.classes is None and self.head is None,
            "`classes` must be a number of classes, or include_top=False for a model without a head.",
            "classes",
        )
        if self.include_top and self.head is None:
            self._set("classes", checks.positive_int("classes", self.classes))

    def _refuse(self, wrong: Any, expected: str, *names: str) -> None:
        """Raise a ValueError with `expected` and the values of the named arguments if `wrong` is true."""
        if wrong:
            received = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            raise ValueError(f"{expected} Received: {received}.")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all arguments, including `name` and `dtype`."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Return the defaults of the arguments that are neither in `COMMON` nor in `FREE`.

        The checkpoints of a project have the default value of every option that the project does not support.
        """
        left_out = {*cls.COMMON, *cls.FREE}
        return {field.name: field.default for field in dataclasses.fields(cls) if field.name not in left_out}

    @classmethod
    def from_dict(cls, arguments: Mapping[str, Any]) -> Self:
        """Create a configuration from a model's `get_config()`. Keys that are not arguments are ignored."""
        return cls(**{name: value for name, value in arguments.items() if name in cls.names()})

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved arguments as JSON-serializable values."""
        values = {name: getattr(self, name) for name in self.names()}
        if self.head is not None:
            values["head"] = keras.saving.serialize_keras_object(self.head)
            values["head"].pop("build_config", None)  # the build configuration depends on the image size
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @property
    def image_shape(self) -> tuple[int | None, int | None, int]:
        """Shape of an image, `(height, width, channels)`. Height and width are None for images of any size."""
        return (*((None, None) if self.image_size is None else pair(self.image_size)), self.channels)


def choices_of(hint: Any) -> tuple[Any, ...]:
    """Return all values of `Literal`, bool, None, or a union of these types. Return `()` for any other type."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        parts = [choices_of(part) for part in typing.get_args(hint)]
        return sum(parts, ()) if all(parts) else ()
    if hint is bool:
        return (False, True)
    return (None,) if hint is types.NoneType else typing.get_args(hint) if typing.get_origin(hint) is Literal else ()


def registered_name(name: str, value: Any) -> str:
    """Return the name under which Keras registers the class or function `value`, which may also be this name."""
    key = value if isinstance(value, str) else None
    if isinstance(value, (type, types.FunctionType)):
        key = keras.saving.get_registered_name(value)
    found = keras.saving.get_registered_object(key)
    if found is None or found is not value and key is not value:
        raise ValueError(
            f"`{name}` must be a class or function with @keras.saving.register_keras_serializable(), or its registered "
            f"name, such as 'package>Name'. Received: {name}={value!r}."
        )
    return str(key)


def pair(size: Size) -> tuple[int, int]:
    """Return a size as (height, width)."""
    return size if isinstance(size, tuple) else (size, size)


def plain(size: tuple[int, int]) -> Size:
    """Return a single integer if height and width are equal, and (height, width) otherwise."""
    return size[0] if size[0] == size[1] else size
