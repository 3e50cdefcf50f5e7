"""Comparison of the classes of data with those of a model."""

from collections.abc import Sequence

from absl import logging


def check(name: str, class_names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse data whose labels cannot be compared with a model's scores, and warn if only the names differ.

    Args:
        name: Name of the data.
        class_names: Classes of the data, in the order of the labels.
        known: Classes of the model, in the order of the scores.

    Raises:
        ValueError: If the number of classes differs, or the order of the same classes.
    """
    if len(class_names) != len(known):
        raise ValueError(
            f"The data must have the model's {len(known)} classes, {summary(known)}. "
            f"Received: {name!r} with {len(class_names)}, {summary(class_names)}."
        )
    if tuple(class_names) == tuple(known):
        return
    if sorted(class_names) == sorted(known):
        raise ValueError(
            f"The classes of the data must be in the order of the model's, {summary(known)}. "
            f"Received: {summary(class_names)}."
        )
    logging.warning(
        "The classes of %s are called %s, those of the model %s. They are compared by their numbers.",
        name,
        summary(class_names),
        summary(known),
    )


def summary(names: Sequence[str]) -> str:
    """Return the first names."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
