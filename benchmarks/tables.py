"""Tables inside of Markdown files, and figures of several runs."""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from keras_vit import _io


def percent(values: Sequence[float]) -> str:
    """Return mean and sample standard deviation in percent: `"93.12 ± 0.15"`."""
    if not len(values):
        return "-"
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.2f}{spread}"


def write_between(path: str | Path, name: str, text: str) -> None:
    """Replace the text between `<!-- name -->` and `<!-- /name -->` in a file.

    Raises:
        ValueError: If the file does not have the two marks exactly once.
    """
    content = Path(path).read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    new, count = pattern.subn(lambda match: f"{match[1]}{text}\n{match[2]}", content)
    if count != 1:
        raise ValueError(f"{path} must contain <!-- {name} --> and <!-- /{name} --> once. It has {count} such places.")
    _io.write_text(path, new)
