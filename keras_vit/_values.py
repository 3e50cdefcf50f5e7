"""Numbers per image that a model predicts: their names, and the standardization in which it learns them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Values:
    """Names of `k` numbers, with mean and standard deviation of each in the training split, in the unit of the data.

    A model predicts standardized numbers. `restore` returns them to the unit of the data.

    Example:
    >>> ages = Values(("age",), mean=(40.0,), deviation=(10.0,))
    >>> ages.standardize(np.float32([[50.0]])), ages.restore(np.float32([[1.0]]))
    (array([[1.]], dtype=float32), array([[50.]], dtype=float32))
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
                    f"{name} must hold one finite number for each of {', '.join(self.names)}. Received: {numbers}."
                )
        if min(self.deviation, default=1.0) <= 0:
            raise ValueError(f"The deviation of each number must be positive. Received: {self.deviation}.")

    def standardize(self, values: Any) -> Any:
        """Return values of the data `[..., k]`, arrays or tensors of float32, in standard deviations from the mean."""
        return (values - np.asarray(self.mean, np.float32)) / np.asarray(self.deviation, np.float32)

    def restore(self, outputs: Any) -> Any:
        """Return outputs of the model `[..., k]`, arrays or tensors of float32, in the unit of the data."""
        return outputs * np.asarray(self.deviation, np.float32) + np.asarray(self.mean, np.float32)

    def to_dict(self) -> dict[str, list]:
        """Return the values as JSON holds them."""
        return {name: list(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Sequence]) -> "Values":
        """Return the values that `to_dict` wrote.

        Raises:
            ValueError: If a part is missing or damaged.
        """
        try:
            return cls(**{field.name: tuple(content[field.name]) for field in dataclasses.fields(cls)})
        except (KeyError, TypeError) as error:
            raise ValueError(f"Values need names, mean and deviation. Received: {content!r}.") from error
