"""Values of a regression: their names and standardization."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Values:
    """Names of the `k` values of a regression, and their mean and standard deviation in the training split.

    Mean and standard deviation are in the unit of the data. A model predicts standardized values, and `restore`
    converts them to the unit of the data.
    """

    names: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self):
        object.__setattr__(self, "names", tuple(map(str, self.names)))
        for name in ("mean", "deviation"):
            numbers = tuple(map(float, getattr(self, name)))
            object.__setattr__(self, name, numbers)
            if len(numbers) != len(self.names) or not np.isfinite(numbers).all():
                raise ValueError(
                    f"{name} must contain one finite number for each of {', '.join(self.names)}. Received: {numbers}."
                )
        if min(self.deviation, default=1.0) <= 0:
            raise ValueError(f"The standard deviation of each value must be positive. Received: {self.deviation}.")

    def standardize(self, values: Any) -> Any:
        """Standardize values in the unit of the data: an array or tensor `[..., k]`, float32 or float64."""
        dtype = np.float64 if "float64" in str(values.dtype) else np.float32
        return (values - np.asarray(self.mean, dtype)) / np.asarray(self.deviation, dtype)

    def restore(self, outputs: Any) -> Any:
        """Convert outputs of the model to the unit of the data: a float32 array or tensor `[..., k]`."""
        return outputs * np.asarray(self.deviation, np.float32) + np.asarray(self.mean, np.float32)

    def to_dict(self) -> dict[str, list]:
        """Return a JSON-serializable dictionary."""
        return {name: list(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Sequence]) -> "Values":
        """Create values from the result of `to_dict`. A ValueError reports a missing or invalid field."""
        try:
            return cls(**{field.name: tuple(content[field.name]) for field in dataclasses.fields(cls)})
        except (KeyError, TypeError) as error:
            raise ValueError(f"Values need names, mean and standard deviation. Received: {content!r}.") from error


def shortest(number: float) -> float:
    """Return the float64 with the shortest decimal representation of a float32."""
    return float(str(np.float32(number)))
