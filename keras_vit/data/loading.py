"""From items, which say what each row of a batch is, to batches of loaded images."""

import os
from collections.abc import Callable

import tensorflow as tf

from keras_vit.data.bad_images import Reporter
from keras_vit.data.sources import ArraySource, Source


def load_batches(
    items: tf.data.Dataset, load: Callable[[dict], dict], source: Source, rows: int, reporter: Reporter, training: bool
) -> tf.data.Dataset:
    """Load examples in parallel, in order, and batch them.

    `items` has one element per step: vectors of `rows`. Rows whose position is -1 become zeros. In training an image
    that cannot be read is replaced by another; otherwise its row becomes zeros.
    """
    loader = _Loader(load, source, items.element_spec, rows, reporter, training)
    if isinstance(source, ArraySource):  # nothing is decoded, nothing can fail
        loaded = items.unbatch().map(loader.load, tf.data.AUTOTUNE, deterministic=True)
        return loaded.batch(rows, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    # One batch keeps all cores busy, except at its end. Small batches are loaded several at a time.
    return items.map(loader.load_rows, 1 + -(-_cores() // rows), deterministic=True)


def _cores() -> int:
    return os.cpu_count() or 1


class _Loader:
    """Loads items inside of graphs."""

    def __init__(
        self, load: Callable[[dict], dict], source: Source, spec: dict, rows: int, reporter: Reporter, training: bool
    ):
        self._source, self._rows, self._reporter = source, rows, reporter
        self._replaces = training and reporter.skips
        self._always = training and isinstance(source, ArraySource)
        spec = {key: tf.TensorSpec(value.shape[1:], value.dtype) for key, value in spec.items()}
        # Traced once, used at several places.
        self._load = tf.function(load, autograph=False).get_concrete_function(spec)

    @tf.autograph.experimental.do_not_convert
    def load(self, item: dict) -> dict:
        """Load an item. Rows that only fill up a batch become zeros."""
        return (
            self._load(item) if self._always else tf.cond(item["position"] < 0, self._zeros, lambda: self._load(item))
        )

    def _zeros(self) -> dict:
        return {key: tf.zeros(value.shape, value.dtype) for key, value in self._load.structured_outputs.items()}

    @tf.autograph.experimental.do_not_convert
    def load_rows(self, items: dict) -> dict:
        """Load the rows of a batch by a dataset of its own, in which those that cannot be read are missing."""
        numbered = tf.data.Dataset.from_tensor_slices((tf.range(self._rows), items))
        loaded = numbered.map(lambda row, item: (row, self.load(item)), _cores(), deterministic=True)
        # The last element, cut off below, is there even if nothing can be read.
        last = tf.data.Dataset.from_tensors((self._rows, self._zeros()))
        numbers, batch = loaded.ignore_errors().concatenate(last).batch(self._rows + 1).get_single_element()
        batch = {key: value[:-1] for key, value in batch.items()}  # a view, without a copy
        batch = tf.cond(
            tf.size(numbers) == self._rows + 1, lambda: batch, lambda: self._repaired(items, numbers[:-1], batch)
        )
        return {key: tf.ensure_shape(value, [self._rows, *value.shape[1:]]) for key, value in batch.items()}

    def _repaired(self, items: dict, numbers: tf.Tensor, batch: dict) -> dict:
        """Fill the rows that could not be read, and report them."""
        is_missing = tf.tensor_scatter_nd_update(tf.ones([self._rows], tf.bool), numbers[:, None], numbers < 0)
        missing = tf.where(is_missing)[:, 0]
        if self._replaces:
            lost = {key: tf.gather(value, missing) for key, value in items.items()}
            outputs = self._load.structured_outputs
            specs = (
                tf.TensorSpec([], tf.int64),
                {key: tf.TensorSpec(value.shape, value.dtype) for key, value in outputs.items()},
            )
            failures, others = tf.map_fn(self._first_readable, lost, fn_output_signature=specs, parallel_iterations=1)
            numbers = tf.concat([numbers, tf.cast(missing, tf.int32)], 0)
            batch = {key: tf.concat([value, others[key]], 0) for key, value in batch.items()}
        else:
            failures = tf.fill(tf.shape(missing), tf.constant(-1, tf.int64))
        failures = tf.tensor_scatter_nd_update(tf.zeros([self._rows], tf.int64), missing[:, None], failures)
        problem = self._reporter.report(failures, {key: items[key] for key in self._reporter.keys})
        with tf.control_dependencies([tf.debugging.Assert(tf.strings.length(problem) == 0, [problem])]):
            return {
                key: tf.scatter_nd(numbers[:, None], value, [self._rows, *value.shape[1:]])
                for key, value in batch.items()
            }

    def _first_readable(self, item: dict) -> tuple[tf.Tensor, dict]:
        """Load an item, or the first one after it that can be read.

        Returns how many could not be read before that, int64, or -1 with zeros if none can be read.
        """
        tried = tf.data.Dataset.from_tensors(item)
        tried = tried.concatenate(tf.data.Dataset.from_tensors(item).flat_map(self._source.following))
        loaded = tried.enumerate().map(lambda failures, item: (failures, self.load(item))).ignore_errors()
        nothing = tf.data.Dataset.from_tensors((tf.constant(-1, tf.int64), self._zeros()))
        return loaded.concatenate(nothing).take(1).get_single_element()
