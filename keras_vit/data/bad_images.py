"""Policies for unreadable images: stop with the name of the file, or skip the image and list it."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit import _checks
from keras_vit.data.errors import bad_image, describe
from keras_vit.data.python_ops import call_python
from keras_vit.data.sources import Source

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


class Reporter:
    """Reporter of unreadable images, which lists them (`"skip"` or a `Log`) or stops the pipeline (`"error"`).

    In training, skipped images are replaced by other images. The pipeline stops if more than half of the images are
    skipped.
    """

    def __init__(self, source: Source, load: Callable[[dict], dict], on_bad_image: str | Log, training: bool):
        if not isinstance(on_bad_image, Log):
            _checks.choice("on_bad_image", on_bad_image, ("error", "skip"))
        self.skips = on_bad_image != "error"
        self.keys = (*source.keys, "position")
        self._source, self._load, self._training = source, load, training
        self._log = on_bad_image if isinstance(on_bad_image, Log) else Log()
        self._bad: set[str] = set()

    def report(self, failures: tf.Tensor, identity: dict[str, tf.Tensor]) -> tf.Tensor:
        """Return the error message with which the pipeline must fail, a scalar string; empty to continue.

        `failures`, int64 `[rows]`, is 0 if the image of a row could be read, and -1 if the image and all replacements
        could not. `identity` contains a vector for each of `keys`.
        """

        def call(failures, *values):
            return self._report(failures, dict(zip(self.keys, values, strict=True)))

        problem = call_python(call, [failures, *(identity[key] for key in self.keys)])
        return problem if self.skips else problem + "\n"  # never empty, even if the process is ending

    def _report(self, failures: np.ndarray, identity: dict[str, np.ndarray]) -> bytes:
        for row in np.flatnonzero(failures):
            ids = {key: int(value[row]) for key, value in identity.items()}
            position = tf.constant(ids.pop("position"), tf.int64)
            origin, item = self._source.named_item(ids)
            reason = self._log.reasons.get(origin) or self._reason({**item, "position": position})
            self._bad.add(origin)
            if not self.skips:
                return bad_image(origin, reason).encode()
            if self._training and (failures[row] < 0 or len(self._bad) > MAX_SHARE * self._source.num_examples):
                much = f"{reason} More than half of {self._source.name} cannot be read."
                return bad_image(origin, much).encode()
            self._log.add(origin, reason)
        return b""

    def _reason(self, item: dict[str, tf.Tensor]) -> str:
        """Load an item again outside of graphs, where error messages are short."""
        try:
            self._load(item)
        except tf.errors.OpError as error:
            return describe(error)
        return "could not be read at first, but a second attempt succeeded"
