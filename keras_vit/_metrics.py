"""What a reported number means: its name, the direction in which it improves, and its unit."""

import dataclasses

from keras_vit import _numbers


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number that a training or an evaluation reports.

    Attributes:
        name: Its name, such as `"accuracy"`.
        larger_is_better: Whether an improvement increases it.
        unit: `"%"` for a fraction, which is shown in percent. Any other unit is written behind the number.

    Example:
    >>> Metric("accuracy", unit="%").text(0.75), Metric("loss", larger_is_better=False, unit="nats").text(0.3125)
    ('75.00%', '0.3125 nats')
    """

    name: str
    larger_is_better: bool = True
    unit: str = ""

    def text(self, value: float | None, digits: int = 4) -> str:
        """Return a value with its unit: a fraction in percent, others in `digits` significant digits."""
        if self.unit == "%" and isinstance(value, float):
            return f"{value:.2%}"
        shown = _numbers.number(value, digits)
        return f"{shown} {self.unit}" if value is not None and self.unit not in ("", "%") else shown

    def goodness(self, value: float) -> float:
        """Return a number that is larger for a better value."""
        return value if self.larger_is_better else -value
