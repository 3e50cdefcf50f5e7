"""Whether the classes of some data are those of a model."""

from collections.abc import Sequence

from absl import logging


def check(name: str, class_names: Sequence[str], known: Sequence[str]) -> None:
    """Refuses data whose labels cannot be compared with a model's scores; warns where only the names differ.

    Args:
        name: Of the data.
        class_names: Of the data, in the order of the labels.
        known: Names of the model's classes, in the order of the scores.

    Raises:
        ValueError: If there are more or fewer classes, or the same in another order.
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
        "The classes of %s are called %s, those of the model %s: compared by their numbers.",
        name,
        summary(class_names),
        summary(known),
    )


def summary(names: Sequence[str]) -> str:
    """The first names."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
