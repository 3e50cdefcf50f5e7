"""The comparison as one HTML file that needs no network."""

import os
from collections.abc import Sequence, Set

from keras_vit import _io, _numbers
from keras_vit.experiments.comparison import Comparison, Group
from keras_vit.inspection import plots
from keras_vit.inspection.headings import stamp
from keras_vit.inspection.page import html

_BEST = "eval_accuracy"
_CURVES = {
    "loss": ("Training loss", "loss (nats)"),
    "eval_loss": ("Evaluation loss", "loss (nats)"),
    "accuracy": ("Training accuracy", "accuracy"),
    "eval_accuracy": ("Evaluation accuracy", "accuracy"),
    "learning_rate": ("Learning rate", "learning rate"),
    "grad_norm": ("Gradient norm", "norm"),
}


def write_comparison(comparison: Comparison, directory: str) -> str:
    """Write `comparison.html`, `.md` and `.json`, and return the path of the page.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    page = render(comparison)
    _io.write_text(os.path.join(directory, "comparison.md"), comparison.markdown())
    _io.write_json(os.path.join(directory, "comparison.json"), comparison.to_dict())
    path = os.path.join(directory, "comparison.html")
    _io.write_text(path, page)
    return path


def render(comparison: Comparison) -> str:
    """Return the page as HTML."""
    plots.require_matplotlib()
    groups = comparison.groups
    count = len(comparison.runs)
    body = [
        html.card(
            "Results",
            "The last value of every metric. The best value of a column is bold. A run that is not finished says how "
            "many steps it has made.",
            _table(*comparison.results(), bold=_best_cells(comparison)),
        ),
        _curves(comparison, groups),
        html.card(
            "Differences",
            "Fields of the recipes, the data and the versions that differ between the runs. All others are the same.",
            _table(*comparison.difference_table())
            if comparison.differences
            else "<p>The runs have the same recipe, data and versions.</p>",
        ),
    ]
    return html.document(
        f"Comparison of {count} runs",
        stamp(),
        _tiles(comparison, groups),
        "\n".join(body),
        f"Written by {stamp()}. This file needs no network.",
    )


def _tiles(comparison: Comparison, groups: Sequence[Group]) -> list[tuple[str, str]]:
    tiles = []
    reached = [(run.final()[_BEST], run.name) for run in comparison.runs if _BEST in run.final()]
    if reached:
        accuracy, name = max(reached)
        tiles.append((_numbers.metric(_BEST, accuracy), f"best accuracy: {name}"))
    tiles.append((str(len(comparison.runs)), "runs"))
    if len(groups) < len(comparison.runs):
        tiles.append((str(len(groups)), "settings, without the seeds"))
    tiles.append((str(len(comparison.differences)), "fields that differ"))
    return tiles


def _best_cells(comparison: Comparison) -> set[tuple[int, int]]:
    """Return row and column of the best value of each metric."""
    found = set()
    for column, metric in enumerate(comparison.metrics, start=2):
        values = {row: run.final()[metric] for row, run in enumerate(comparison.runs) if metric in run.final()}
        best = (min if "loss" in metric else max)(values.values(), default=None)
        if len(set(values.values())) > 1:
            found |= {(row, column) for row, value in values.items() if value == best}
    return found


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], bold: Set[tuple[int, int]] = frozenset()) -> str:
    kinds = [' class="number"' if title.endswith(":") else "" for title in header]
    head = "".join(
        f'<th scope="col"{kind}>{html.escape(title.removesuffix(":"))}</th>'
        for title, kind in zip(header, kinds, strict=True)
    )
    lines = []
    for number, row in enumerate(rows):
        cells = [f'<th scope="row">{html.escape(row[0])}</th>']
        for column, text in enumerate(row[1:], start=1):
            text = html.escape(text)
            text = f"<b>{text}</b>" if (number, column) in bold else text
            cells.append(f"<td{kinds[column]}>{text}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "".join(lines)
    return f'<div class="scroll"><table class="runs"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _curves(comparison: Comparison, groups: Sequence[Group]) -> str:
    """Return a card with a drawing per quantity, and the colors of the groups above."""
    others = {name: (name, name) for name in comparison.metrics if name not in _CURVES}
    drawings = []
    for quantity, (title, label) in {**_CURVES, **others}.items():
        series = [[run.curve(quantity) for run in group.runs] for group in groups]
        if any(curve for curves in series for curve in curves):
            drawn = plots.run_curves(series, title, label)
            drawings.append(html.drawing(plots.svg(drawn), title))
    if not drawings:
        return ""
    names = "".join(
        f'<li><span class="line line-{index}"></span><span class="label">{html.escape(group.name)}</span></li>'
        for index, group in enumerate(groups[: plots.MAX_COLORS])
    )
    if len(groups) > plots.MAX_COLORS:
        names += '<li><span class="line"></span><span class="label">other runs</span></li>'
    help_text = (
        "Runs that differ only in the seed are one line, their mean, in a band from the lowest to the highest. "
        "Training includes augmentation and label smoothing, evaluation does not."
    )
    content = f'<ul class="lines">{names}</ul><div class="drawings">{"".join(drawings)}</div>'
    return html.card("Curves", help_text, content)
