"""Tables inside of Markdown files, and figures of several runs."""

import statistics
from collections.abc import Sequence

from keras_vit._io import write_between

__all__ = ["percent", "write_between"]


def percent(values: Sequence[float]) -> str:
    """Return mean and sample standard deviation in percent: `"93.12 ± 0.15"`."""
    if not len(values):
        return "-"
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.2f}{spread}"
