"""Resizing of image files to a model's image size, as in the evaluation of its published weights."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_vit.util import checks

# Method -> arguments of the operations `resize` and `resize_small`. Pillow's methods resize 8-bit pixels.
METHODS = {
    "pillow_bilinear": "'pillow_bilinear'",
    "pillow_bicubic": "'pillow_bicubic'",
    "pillow_lanczos": "'pillow_lanczos'",
    "antialiased": "'bilinear', antialias=True, cast=False",  # resizes floating-point pixels
}
_MAX_SIZE = 2**14


@dataclasses.dataclass(frozen=True)
class Resizing:
    """Resizing of image files, followed by a central crop.

    Attributes:
        size: Height and width of the result.
        resized: Size before the crop: (height, width), or the length of the shorter side to keep the aspect ratio.
        method: A key of `METHODS`.
        rounding: Rounding of the position of the crop; see `central_crop`.
    """

    size: tuple[int, int]
    resized: int | tuple[int, int]
    method: str
    rounding: str = "down"

    def __post_init__(self) -> None:
        checks.choice("method", self.method, tuple(METHODS))
        checks.choice("rounding", self.rounding, ("down", "even"))
        before = self.resized if isinstance(self.resized, (list, tuple)) else (self.resized,) * 2
        pairs = [checks.size_pair(name, value) for name, value in (("size", self.size), ("resized", before))]
        if max(map(max, pairs)) > _MAX_SIZE or any(after > before for after, before in zip(*pairs, strict=True)):
            raise ValueError(
                f"`resized` must be at least `size`, and at most {_MAX_SIZE}. Received: size={self.size}, "
                f"resized={self.resized}."
            )
        object.__setattr__(self, "size", pairs[0])
        object.__setattr__(self, "resized", pairs[1] if isinstance(self.resized, (list, tuple)) else self.resized)

    @classmethod
    def from_dict(cls, fields: Any) -> "Resizing":
        """Create a resizing from the result of `dataclasses.asdict`. Raises a ValueError for other mappings."""
        if not isinstance(fields, Mapping) or set(fields) != {field.name for field in dataclasses.fields(cls)}:
            raise ValueError(f"Expected size, resized and method of a resizing. Received: {str(fields)[:100]}.")
        return cls(**fields)

    def scaled(self, size: tuple[int, int]) -> "Resizing":
        """Return the resizing for another size: proportional if both sizes are square, otherwise without a crop."""
        if size == self.size:
            return self
        if isinstance(self.resized, int) and size[0] == size[1] and self.size[0] == self.size[1]:
            return dataclasses.replace(self, size=size, resized=round(self.resized * size[0] / self.size[0]))
        return dataclasses.replace(self, size=size, resized=size)

    def operations(self, channels: int = 3) -> str:
        """Return the operations as a preprocessing string."""
        decode = "decode(precise=True)" if channels == 3 else f"decode({channels}, precise=True)"
        name = "resize_small" if isinstance(self.resized, int) else "resize"
        steps = [decode, f"{name}({_text(self.resized)}, {METHODS[self.method]})"]
        if self.resized != self.size:
            rounding = "" if self.rounding == "down" else f", rounding={self.rounding!r}"
            steps.append(f"central_crop({_text(self.size)}{rounding})")
        return "|".join(steps)


def _text(size: int | tuple[int, int]) -> str:
    """Format a size for the arguments of an operation."""
    return str(size[0] if isinstance(size, tuple) and size[0] == size[1] else size)
