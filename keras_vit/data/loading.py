"""Loading and batching of items. An item identifies the example of a row.

Unreadable images stop the pipeline with the name of the file, or they are skipped and listed.
"""

import contextlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_vit.data.errors import BadImageLog, bad_image, describe, log_of
from keras_vit.data.python_ops import call_python
from keras_vit.data.sources import Source

# Items are loaded in groups of at least this size, or all rows of a step: each group needs a dataset that leaves out
# the unreadable images. To create a dataset takes as long as to load one or two small images.
GROUP = 32
# Training stops if more than this share of the examples cannot be read.
MAX_SHARE = 0.5


class Repair:
    """Function that fills the rows whose images cannot be read (`"skip"` or a `BadImageLog`), or stops (`"error"`).

    In training, these images are replaced by other images. Otherwise the rows are zeros. Training stops if more than
    half of the images are skipped.
    """

    def __init__(self, source: Source, load: Callable[[dict], dict], on_bad_image: str | BadImageLog, training: bool):
        self.log = log_of(on_bad_image)
        self.source, self._load, self._training = source, load, training
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
        origin = self.source.origin(*(int(item[key]) for key in self.source.keys))
        self._bad.add(origin)
        if self.log is None:
            self._problem = self._problem or bad_image(origin, reason)
            raise ValueError(self._problem)  # calls after a failure fail in the same way
        if not self._training:
            self.log.add(origin, reason)
            return {}
        if len(self._bad) <= MAX_SHARE * self.source.num_examples:
            for other in self.source.following(item):
                with contextlib.suppress(tf.errors.OpError):
                    example = self._load(other)
                    self.log.add(origin, reason)
                    return example
        raise ValueError(bad_image(origin, f"{reason} More than half of {self.source.name} cannot be read."))


def load_batches(items: tf.data.Dataset, load: Callable[[dict], dict], rows: int, repair: Repair) -> tf.data.Dataset:
    """Load examples in parallel and batch them in order.

    `items` has one element per step, whose entries are vectors over `rows` rows. Rows with the position -1 become
    zeros. `repair` fills the rows whose images cannot be read.
    """
    size = next(size for size in range(min(rows, GROUP), rows + 1) if rows % size == 0)
    groups = items.map(lambda item: (tf.range(rows), item)).unbatch().batch(size, drop_remainder=True)
    groups = repair.source.read_groups(groups)
    spec = {key: tf.TensorSpec(value.shape[1:], value.dtype) for key, value in groups.element_spec[1].items()}
    traced = tf.function(load, autograph=False).get_concrete_function(spec)

    def zeros():
        return {key: tf.zeros(value.shape, value.dtype) for key, value in traced.structured_outputs.items()}

    @tf.autograph.experimental.do_not_convert
    def load_row(number, item):
        return number, tf.cond(item["position"] < 0, zeros, lambda: traced(item))

    @tf.autograph.experimental.do_not_convert
    def load_group(numbers, group):
        """Return the numbers of the readable rows with their examples, and -1 with zeros for each unreadable row."""
        readable = tf.data.Dataset.from_tensor_slices((numbers, group)).map(load_row).ignore_errors()
        missing = tf.data.Dataset.from_tensors((-1, zeros())).repeat(size)
        loaded = readable.concatenate(missing).batch(size, drop_remainder=True).take(1)
        # Rows that are repaired are read again.
        return {key: group[key] for key in items.element_spec}, *loaded.get_single_element()

    @tf.autograph.experimental.do_not_convert
    def join(*groups):
        step = tf.nest.map_structure(lambda value: tf.reshape(value, [rows, *value.shape[2:]]), groups)
        _, numbers, examples = step
        complete = tf.reduce_all(numbers >= 0)
        return tf.cond(complete, lambda: examples, lambda: call_python(repair, step, examples))

    parallel = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}
    return groups.map(load_group, **parallel).batch(rows // size, drop_remainder=True, **parallel).map(join)
