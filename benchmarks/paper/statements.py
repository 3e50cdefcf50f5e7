"""Statements about results, and sentences that report whether they hold."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from scipy import stats

SIGNIFICANCE = 0.05
MARGIN = 0.01  # maximum difference of accuracies that count as equal


@dataclasses.dataclass(frozen=True)
class Statement:
    """Part of a claim, with the numbers that decide whether it holds.

    Attributes:
        text: The statement and its numbers.
        holds: Whether it holds.
    """

    text: str
    holds: bool


def ahead(first: str, second: str, scores: Mapping[str, Sequence[float]], where: str = "") -> Statement:
    """State that the first of two settings is more accurate, by Welch's one-sided test.

    Args:
        first: Name of the setting that is claimed to be more accurate.
        second: Name of the other setting.
        scores: Accuracies by name, one per seed.
        where: Condition, such as `"with 1% of the images"`.

    Example:
    >>> statement = ahead("a", "b", {"a": [0.90, 0.91, 0.92], "b": [0.80, 0.81, 0.82]})
    >>> statement.text, statement.holds
    ('a is more accurate than b: 91.00 ± 1.00% and 81.00 ± 1.00%', True)
    """
    condition = f" {where}" if where else ""
    numbers = f"{percent(scores[first])} and {percent(scores[second])}"
    return Statement(
        f"{first} is more accurate than {second}{condition}: {numbers}", exceeds(scores[first], scores[second])
    )


def exceeds(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether the mean of `first` is significantly larger, by Welch's one-sided test."""
    difference = statistics.fmean(first) - statistics.fmean(second)
    if statistics.pvariance(first) + statistics.pvariance(second) == 0:
        return difference > 0
    return bool(stats.ttest_ind(first, second, equal_var=False, alternative="greater").pvalue < SIGNIFICANCE)


def alike(scores: Mapping[str, Sequence[float]], where: str = "", together: str = "") -> Statement:
    """State that the mean accuracies differ by at most one point.

    Args:
        scores: Accuracies by name, one per seed.
        where: Condition, such as `"at the best rate of each"`.
        together: Common name of all settings, used instead of the list of names.

    Example:
    >>> alike({"a": [0.901], "b": [0.905], "c": [0.903]}).text
    'a, b and c differ by at most 1 point: 0.40 points from a (90.10%) to b (90.50%)'
    """
    means = {name: statistics.fmean(values) for name, values in scores.items()}
    low, high = (pick(means, key=lambda name: means[name]) for pick in (min, max))
    *first, last = scores
    span = means[high] - means[low]
    condition = f" {where}" if where else ""
    subject = together or f"{', '.join(first)} and {last}"
    text = (
        f"{subject} differ by at most {100 * MARGIN:g} point{condition}: {100 * span:.2f} points "
        f"from {low} ({percent(scores[low])}) to {high} ({percent(scores[high])})"
    )
    return Statement(text, span <= MARGIN)


def summary(statements: Sequence[Statement]) -> str:
    """Return a sentence that reports whether a claim reproduces, and a list of its statements.

    Example:
    >>> print(summary([Statement("a is more accurate than b", True), Statement("c is equal", False)]))
    **Reproduces in part at this size: 1 of 2 statements hold.**
    <BLANKLINE>
    - A is more accurate than b. The statement holds.
    - C is equal. The statement does not hold.
    """
    count, total = sum(one.holds for one in statements), len(statements)
    all_or_none = {0: "Does not reproduce", total: "Reproduces"}
    outcome = all_or_none.get(count, "Reproduces in part")
    lines = [
        f"- {_capitalized(one.text)}. The statement {'holds' if one.holds else 'does not hold'}." for one in statements
    ]
    return "\n".join([f"**{outcome} at this size: {count} of {total} statements hold.**", "", *lines])


def percent(values: Sequence[float]) -> str:
    """Return the mean and the sample standard deviation in percent, or a dash without measurements."""
    if not values:
        return "–"
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.2f}{spread}%"


def _capitalized(text: str) -> str:
    return text[0].upper() + text[1:]
