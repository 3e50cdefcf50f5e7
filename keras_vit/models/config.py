"""Common part of the arguments of all models."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, TypeVar

from keras_vit import _checks
from keras_vit.layers import get_activation

Size = int | tuple[int, int]
Auto = Literal["auto"]  # in a constructor such as `ViT_B16`: the value that published weights were trained with
Model = TypeVar("Model", covariant=True)


class Config:
    """Arguments of a model; the base class of `ViTConfig` and `BiTConfig`.

    Attributes:
        COMMON: Arguments that the models of every project have.
        FREE: Arguments on which neither the weights nor what they compute depends.
    """

    COMMON: ClassVar[tuple[str, ...]] = ("channels", "classes", "include_top")
    FREE: ClassVar[tuple[str, ...]] = (
        "image_size",
        "classifier_activation",
        "name",
        "dtype",
        "head_bias",
        "input_range",
    )

    image_size: Size | None
    classes: int | None
    include_top: bool
    channels: int
    classifier_activation: str | None
    head_bias: float
    input_range: tuple[float, float] | None

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all arguments, `name` and `dtype` included."""
        return tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]  # subclasses are

    @classmethod
    def options(cls) -> dict[str, Any]:
        """Return the defaults of the arguments that are neither common nor free.

        A project's files have the default of every option that the project does not know.
        """
        left_out = {*cls.COMMON, *cls.FREE}
        return {f.name: f.default for f in dataclasses.fields(cls) if f.name not in left_out}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the configuration of a model's `get_config()`; what is no argument of the model is left out."""
        return cls(**{name: value for name, value in arguments.items() if name in cls.names()})

    def to_dict(self) -> dict[str, Any]:
        """Return the resolved arguments in values that JSON keeps."""
        values = {name: getattr(self, name) for name in self.names()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # the dataclasses are frozen once they are checked

    def _check_common(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if field.type is bool:
                _checks.choice(field.name, getattr(self, field.name), (False, True))
        if self.image_size is not None:
            self._set("image_size", plain(_checks.size_pair("image_size", self.image_size)))
        self._set("channels", _checks.positive_int("channels", self.channels))
        if self.input_range is not None:
            self._set("input_range", _checks.interval("input_range", self.input_range))
        self._set("head_bias", _checks.any_number("head_bias", self.head_bias))
        if self.classifier_activation is not None:
            get_activation(self.classifier_activation, "classifier_activation")
        if self.include_top and self.classes is None:
            raise ValueError(
                "`classes` must be a number of classes. Received: classes=None. For a model without a classification "
                "head pass include_top=False."
            )
        if self.include_top:
            self._set("classes", _checks.positive_int("classes", self.classes))

    @property
    def image_shape(self) -> tuple[int | None, int | None, int]:
        """Shape of one image, `(height, width, channels)`; None for sides of any size."""
        return (*((None, None) if self.image_size is None else pair(self.image_size)), self.channels)


def pair(size: Size) -> tuple[int, int]:
    """Return a size as (height, width)."""
    return size if isinstance(size, tuple) else (size, size)


def plain(size: tuple[int, int]) -> Size:
    """Return (height, width), or a single number if both are the same."""
    return size[0] if size[0] == size[1] else size
