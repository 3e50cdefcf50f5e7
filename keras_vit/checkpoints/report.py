"""The report of a load, and the error message for a file that does not fit the model."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.checkpoint import Checkpoint, Shape
from keras_vit.models import BIT, VIT

_PROBLEMS = ("unexpected", "missing", "mismatched", "differences")
_SHOWN_NAMES, _COMPARED_NAMES = 40, 10


@dataclasses.dataclass(repr=False)
class LoadReport:
    """Report of `load_checkpoint`.

    Printing the report shows a summary of five lines.

    Attributes:
        family: Name of the project that wrote the file, such as `"google"` or `"timm"`.
        loaded: Variables that were loaded from the file.
        reset: Variables that were set to their initial values.
        dropped: Tensors of the file that were skipped on purpose.
        unexpected: Tensors of the file without a variable in the model.
        missing: Variables without a tensor in the file.
        mismatched: Variables whose shapes differ, as (file's shape, model's shape).
        differences: Arguments whose values differ, as (file's value, model's value).
        notes: Descriptions of the changes to the weights and of the assumptions.

    Example:
    >>> path = keras_vit.save_checkpoint(model, "vit.npz")
    >>> report = keras_vit.load_checkpoint(model, path)
    >>> report.family, len(report.loaded), report.problems()
    ('google', 40, False)
    """

    family: str
    loaded: list[str] = dataclasses.field(default_factory=list)
    reset: list[str] = dataclasses.field(default_factory=list)
    dropped: list[str] = dataclasses.field(default_factory=list)
    unexpected: list[str] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)
    mismatched: dict[str, tuple[Shape, Shape]] = dataclasses.field(default_factory=dict)
    differences: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    def problems(self) -> bool:
        """Return whether anything is unexpected, missing, mismatched or different."""
        return bool(self.unexpected or self.missing or self.mismatched or self.differences)

    def __repr__(self) -> str:
        problems = [f"{len(names)} {what}" for what in _PROBLEMS if (names := getattr(self, what))]
        return "\n".join(
            [
                f"LoadReport: {len(self.loaded)} variables loaded from a {self.family} checkpoint",
                f"  reset:    {', '.join(self.reset) or 'none'}",
                f"  left out: {_abbreviate(self.dropped)}",
                f"  problems: {', '.join(problems) or 'none'}",
                f"  notes:    {_abbreviate(self.notes, '; ')}",
            ]
        )


def _abbreviate(items: list[str], separator: str = ", ", limit: int = 3) -> str:
    more = [f"{len(items) - limit} more"] if len(items) > limit else []
    return separator.join([*items[:limit], *more]) or "none"


def explain(report: LoadReport, checkpoint: Checkpoint, config: Mapping[str, Any]) -> str:
    """Return the error message for a file that does not fit the model."""
    lines = [f"{checkpoint.path} ({report.family}) does not fit the model."]
    variants = [_variant(side) for side in (checkpoint.arguments, config)]
    if variants[0] and variants[0] != variants[1]:
        lines.append(f"The file is a {variants[0]}; the model is {variants[1] or 'not a published variant'}.")
    for name, (stored, own) in report.differences.items():
        lines.append(f"- `{name}`: the file has {stored!r}, the model has {own!r}. Build it with {name}={stored!r}.")
    if report.mismatched:
        lines.append("Shapes that differ:")
        lines += [f"- {n}: file {a}, model {b}" for n, (a, b) in list(report.mismatched.items())[:_SHOWN_NAMES]]
    if report.missing:
        lines.append(f"Variables of the model that are not in the file ({len(report.missing)}):")
        lines += _with_nearest(report.missing, report.unexpected)
    if report.unexpected:
        lines.append(f"Tensors of the file that are not in the model ({len(report.unexpected)}):")
        lines += _with_nearest(report.unexpected, report.missing)
    lines += [f"({note})" for note in report.notes]
    lines.append("Pass strict=False to load the matching tensors and get this report.")
    return "\n".join(lines)


def _variant(arguments: Mapping[str, Any]) -> str | None:
    """Return the name of the published variant with these sizes, or None."""
    variants: dict[str, Any] = {**VIT, **BIT}
    for name, variant in variants.items():
        sizes = dataclasses.asdict(variant)
        found = {key: arguments.get(key) for key in sizes}
        if {key: tuple(v) if isinstance(v, list) else v for key, v in found.items()} == sizes:
            return name
    return None


def _with_nearest(names: list[str], others: list[str]) -> list[str]:
    """Return one line per name. Only the first few lines include the nearest name, because the search is slow."""
    lines = []
    for index, name in enumerate(names[:_SHOWN_NAMES]):
        candidates = [other for other in others[:50] if len(other) < 200] if index < _COMPARED_NAMES else []
        match = difflib.get_close_matches(name[:200], candidates, n=1, cutoff=0.6)
        lines.append(f"- {name}" + (f"; nearest on the other side: {match[0]}" if match else ""))
    return lines
