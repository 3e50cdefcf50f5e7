"""Policies for unreadable images: stop with the name of the file, or skip the image and list it."""

import contextlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.errors import bad_image, describe
from keras_vit.data.sources import Source
from keras_vit.util import checks

# Training stops if more than this share of the examples cannot be read.
MAX_SHARE = 0.5


class Log:
    """Number and list of skipped images.

    Attributes:
        reasons: Dictionary from the path of each skipped image to the reason.
        count: Number of times an image was skipped. A file counts again in each epoch.

    Example:
    >>> log = Log()
    >>> batches = train_batches(open_source("digits"), "resize(16)", batch_size=8, on_bad_image=log)
    >>> _ = next(iter(batches))
    >>> log.count, log.reasons
    (0, {})
    """

    def __init__(self):
        self.reasons: dict[str, str] = {}
        self.count = 0

    def add(self, origin: str, reason: str) -> None:
        """Count a skipped image, and log it the first time."""
        self.count += 1
        if origin not in self.reasons:
            self.reasons[origin] = reason
            logging.warning("Skipping %s: %s (%d such files so far)", origin, reason, len(self.reasons))


def log_of(on_bad_image: str | Log) -> Log | None:
    """Return the log of the skipped images, or None if unreadable images are errors."""
    if isinstance(on_bad_image, Log):
        return on_bad_image
    return Log() if checks.choice("on_bad_image", on_bad_image, ("error", "skip")) == "skip" else None


class Repair:
    """Function that fills the rows whose images cannot be read (`"skip"` or a `Log`), or stops (`"error"`).

    In training, these images are replaced by other images. Otherwise the rows are zeros. Training stops if more than
    half of the images are skipped.
    """

    def __init__(self, source: Source, load: Callable[[dict], dict], on_bad_image: str | Log, training: bool):
        self.log = log_of(on_bad_image)
        self._source, self._load, self._training = source, load, training
        self._bad: set[str] = set()
        self._problem = ""

    def __call__(
        self, items: dict[str, np.ndarray], numbers: np.ndarray, examples: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the examples of all rows in order.

        `numbers`, int `[rows]`, has the row of each of `examples`, and -1 for each row that is missing.
        """
        read = numbers >= 0
        repaired = {key: np.zeros_like(value) for key, value in examples.items()}
        for key, value in examples.items():
            repaired[key][numbers[read]] = value[read]
        for row in sorted(set(range(len(numbers))) - set(numbers.tolist())):
            item = {key: tf.constant(value[row]) for key, value in items.items()}
            for key, value in self._example(item).items():
                repaired[key][row] = value
        return repaired

    def _example(self, item: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Load an item again, outside of graphs, where error messages are short. Return its example or another one."""
        try:
            return self._load(item)
        except tf.errors.OpError as error:
            reason = describe(error)
        origin = self._source.origin(*(int(item[key]) for key in self._source.keys))
        self._bad.add(origin)
        if self.log is None:
            self._problem = self._problem or bad_image(origin, reason)
            raise ValueError(self._problem)  # calls after a failure fail in the same way
        if not self._training:
            self.log.add(origin, reason)
            return {}
        if len(self._bad) <= MAX_SHARE * self._source.num_examples:
            for other in self._source.following(item):
                with contextlib.suppress(tf.errors.OpError):
                    example = self._load(other)
                    self.log.add(origin, reason)
                    return example
        raise ValueError(bad_image(origin, f"{reason} More than half of {self._source.name} cannot be read."))
