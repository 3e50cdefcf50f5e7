"""Section of the page with the accuracy per class and the confusion matrix."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_vit.inspection import html
from keras_vit.util.formatting import percent

_MAX_MATRIX = 20  # with more classes, the most frequent confusions are listed instead
_MAX_ROWS = 12  # further classes are collapsed
_MAX_PAIRS = 12  # number of listed confusions


@dataclasses.dataclass(frozen=True)
class Classes:
    """Results per class."""

    names: Sequence[str]
    accuracies: np.ndarray  # NaN for a class without images
    counts: np.ndarray
    confusion: np.ndarray | None = None  # [true class, predicted class], None for images with several labels
    of_pixels: bool = False  # whether to count pixels; `accuracies` then contains intersections over unions


def sections(classes: Classes | None) -> str:
    """Return the HTML of the section."""
    if classes is None:
        return ""
    accuracy_help = (
        "Share of each class's images that are predicted correctly, lowest first. "
        "The last number is the number of images of the class."
    )
    if classes.of_pixels:
        accuracy_help = (
            "Pixels of each class that are predicted correctly, divided by the pixels that belong to the class or are "
            "predicted as the class, lowest first. The last number is the number of pixels of the class."
        )
    if classes.confusion is None:
        return html.card("Recall per class", accuracy_help, _accuracies(classes), "wide")
    if len(classes.names) <= _MAX_MATRIX:
        title, content = "Confusion matrix", _matrix(classes, classes.confusion)
        help_text = "Each row is a true class and each column a predicted class. Entries off the diagonal are mistakes."
        help_text += " Numbers are percentages of the pixels of a row." if classes.of_pixels else ""
    else:
        title, content = "Most frequent confusions", _pairs(classes, classes.confusion)
        help_text = "Pairs of a true class and a wrongly predicted class, the most frequent first."
    name = "Intersection over union per class" if classes.of_pixels else "Accuracy per class"
    return html.card(name, accuracy_help, _accuracies(classes)) + html.card(title, help_text, content)


def _accuracies(classes: Classes) -> str:
    order = [int(index) for index in np.argsort(np.nan_to_num(classes.accuracies, nan=2.0), kind="stable")]
    rows = [_accuracy(classes, index) for index in order if np.isfinite(classes.accuracies[index])]
    folded = rows[_MAX_ROWS:]
    noun = "class" if len(folded) == 1 else "classes"
    more = f"<details><summary>{len(folded)} more {noun}</summary>{_list(folded)}</details>" if folded else ""
    return _list(rows[:_MAX_ROWS]) + more


def _list(rows: list[str]) -> str:
    return f'<ul class="bars">{"".join(rows)}</ul>'


def _accuracy(classes: Classes, index: int) -> str:
    name, share, count = html.escape(classes.names[index]), classes.accuracies[index], int(classes.counts[index])
    return (
        f'<li><span class="label" title="{name}">{name}</span><span class="bar"><span style="width:{share:.1%}"></span>'
        f'</span><span class="value">{percent(share)}</span><span class="count">{count:,}</span></li>'
    )


def _matrix(classes: Classes, confusion: np.ndarray) -> str:
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    largest = np.where(np.eye(len(shares), dtype=bool), 0, shares).max(initial=1e-9)
    tints = np.where(np.eye(len(shares), dtype=bool), shares, shares / largest)  # mistakes relative to the largest
    names = [html.escape(name) for name in classes.names]
    upright = "" if max(map(len, classes.names)) <= 3 else ' class="upright"'
    head = "".join(f'<th scope="col" title="{name}"><span{upright}>{name}</span></th>' for name in names)
    rows = []
    for true, name in enumerate(names):
        cells = "".join(
            f'<td class="{"hit" if true == predicted else "miss" if count else "none"}" style="--tint:{tint:.2f}" '
            f'title="{name} predicted as {names[predicted]}: {count:,}">'
            f"{_cell(count, shares[true, predicted], classes)}</td>"
            for predicted, (count, tint) in enumerate(zip(confusion[true].tolist(), tints[true], strict=True))
        )
        rows.append(f'<tr><th scope="row" title="{name}"><span>{name}</span></th>{cells}</tr>')
    corner = '<td class="corner">predicted →<br>true ↓</td>'
    return (
        f'<div class="scroll"><table class="confusion"><thead><tr>{corner}{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(count: int, share: float, classes: Classes) -> str:
    if not count:
        return "·"
    return f"{100 * share:.0f}" if classes.of_pixels else f"{count:,}"


def _pairs(classes: Classes, confusion: np.ndarray) -> str:
    wrong = confusion - np.diag(np.diag(confusion))
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MAX_PAIRS]
    pairs = [np.unravel_index(index, wrong.shape) for index in order]
    items = "".join(
        f"<li><b>{int(wrong[true, predicted]):,} ×</b> {html.escape(classes.names[true])} "
        f"<span>predicted as</span> {html.escape(classes.names[predicted])}</li>"
        for true, predicted in pairs
        if wrong[true, predicted]
    )
    return f'<ol class="pairs">{items}</ol>' if items else "<p>There are no mistakes.</p>"
