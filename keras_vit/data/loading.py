"""Loading and batching of items. An item identifies the example of a row."""

from collections.abc import Callable

import tensorflow as tf

from keras_vit.data.bad_images import Reporter
from keras_vit.data.sources import ArraySource, IndexedSource, Source

# A dataset that can replace unreadable images takes longer to create than to load one small image.
GROUP = 8


def load_batches(
    items: tf.data.Dataset,
    load: Callable[[dict], dict],
    source: Source,
    rows: int,
    reporter: Reporter,
    training: bool,
    steps: int | None = None,
) -> tf.data.Dataset:
    """Load examples in parallel and batch them in order. `steps=None` means that `items` never ends.

    `items` has one element per step, whose entries are vectors over `rows` rows. Rows with the position -1 become
    zeros. If images are skipped, an unreadable image is replaced by another image in training, and by zeros otherwise.
    """
    loader = _Loader(load, source, items.element_spec, always=training and isinstance(source, ArraySource))
    if isinstance(source, ArraySource):  # arrays are not decoded, so loading cannot fail
        return _batch(items.unbatch().map(loader.load, tf.data.AUTOTUNE, deterministic=True), rows)
    if isinstance(source, IndexedSource) and not reporter.skips:
        return _batches_that_fail(items, loader, rows, reporter, steps)
    return _batches_that_report(items, loader, rows, reporter, replace=training and reporter.skips)


class _Loader:
    """Loads single items inside graphs."""

    def __init__(self, load, source: Source, element_spec: dict, always: bool):
        self.source, self.always = source, always
        spec = {key: tf.TensorSpec(value.shape[1:], value.dtype) for key, value in element_spec.items()}
        # Traced once and used in several places.
        self._load = tf.function(load, autograph=False).get_concrete_function(spec)

    @tf.autograph.experimental.do_not_convert
    def load(self, item: dict) -> dict:
        """Load an item. Rows of padding become zeros."""
        return self._load(item) if self.always else tf.cond(item["position"] < 0, self.zeros, lambda: self._load(item))

    def zeros(self) -> dict:
        """Return an example of zeros."""
        return {key: tf.zeros(value.shape, value.dtype) for key, value in self._load.structured_outputs.items()}

    @tf.autograph.experimental.do_not_convert
    def first_readable(self, items: dict, replace: bool) -> tuple[tf.Tensor, dict]:
        """Load items or, with `replace`, the first readable item after each of them.

        Returns the numbers of unreadable items before the loaded items, int64 `[n]`, and the examples. If no item can
        be read, the number is -1 and the example is zeros.
        """
        rows = items["position"].shape[0]
        numbers, examples = self._readable(tf.data.Dataset.from_tensor_slices(items), rows)

        def one_by_one():
            def load(item):
                failures, example = self._readable(self._tried(item, replace), 1)
                return failures[0], {key: value[0] for key, value in example.items()}

            signature = tf.nest.map_structure(lambda value: tf.TensorSpec(value.shape[1:], value.dtype), examples)
            return tf.map_fn(load, items, fn_output_signature=(tf.TensorSpec([], tf.int64), signature))

        all_are_readable = numbers[-1] == rows - 1
        return tf.cond(all_are_readable, lambda: (tf.zeros([rows], tf.int64), examples), one_by_one)

    def _readable(self, items: tf.data.Dataset, rows: int) -> tuple[tf.Tensor, dict]:
        """Load the first `rows` readable items with their numbers. Where there are fewer, -1 and zeros follow."""
        # `enumerate()` would take longer than decoding a small JPEG: this dataset is created for each group of items.
        numbered = items.scan(tf.constant(0, tf.int64), lambda number, item: (number + 1, (number, item)))
        loaded = numbered.map(lambda number, item: (number, self.load(item))).ignore_errors()
        nothing = tf.data.Dataset.from_tensors((tf.constant(-1, tf.int64), self.zeros())).repeat(rows)
        return loaded.concatenate(nothing).batch(rows, drop_remainder=True).take(1).get_single_element()

    def _tried(self, item: dict, replace: bool) -> tf.data.Dataset:
        tried = tf.data.Dataset.from_tensors(item)
        if replace:
            tried = tried.concatenate(tf.data.Dataset.from_tensors(item).flat_map(self.source.following))
        return tried


def _batch(dataset: tf.data.Dataset, rows: int) -> tf.data.Dataset:
    return dataset.batch(rows, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _batches_that_report(
    items: tf.data.Dataset, loader: _Loader, rows: int, reporter: Reporter, replace: bool
) -> tf.data.Dataset:
    """Load groups of items with separate small datasets. This is slower, but can replace unreadable images."""
    size = next(size for size in range(min(rows, GROUP), 0, -1) if rows % size == 0)

    def group(item):
        return {key: tf.reshape(value, [rows // size, size, *value.shape[1:]]) for key, value in item.items()}

    def load(items):
        failures, examples = loader.first_readable(items, replace)
        return failures, {key: items[key] for key in reporter.keys}, examples

    @tf.autograph.experimental.do_not_convert
    def report(*groups):
        failures, identity, example = tf.nest.map_structure(
            lambda value: tf.reshape(value, [rows, *value.shape[2:]]), groups
        )
        problem = tf.cond(
            tf.reduce_any(failures != 0), lambda: reporter.report(failures, identity), lambda: tf.constant("")
        )
        with tf.control_dependencies([tf.debugging.Assert(tf.strings.length(problem) == 0, [problem])]):
            return {key: tf.identity(value) for key, value in example.items()}

    loaded = items.map(group).unbatch().map(load, tf.data.AUTOTUNE, deterministic=True)
    return _batch(loaded, rows // size).map(report)


def _batches_that_fail(
    items: tf.data.Dataset, loader: _Loader, rows: int, reporter: Reporter, steps: int | None
) -> tf.data.Dataset:
    """Load all items in one fast stream. Items are numbered, so that a gap in the numbers identifies a failed item.

    Each step gets an additional row that cannot fail, so the stream is not empty even if all other items fail.
    """

    def number(step, item):
        guard = {key: tf.concat([value, value[:1]], 0) for key, value in item.items()}
        guard["position"] = tf.concat([item["position"], [-1]], 0)
        return step * (rows + 1) + tf.range(rows + 1, dtype=tf.int64), guard

    @tf.autograph.experimental.do_not_convert
    def find(problem, element):
        """Keep the first problem, because all rows after a missing row are in the wrong batches."""
        step, (item, (numbers, batch)) = element
        missing = numbers[:rows] != step * (rows + 1) + tf.range(rows, dtype=tf.int64)
        is_new = tf.reduce_any(missing) & (tf.strings.length(problem) == 0)

        def report():
            row = tf.where(missing)[0, 0]
            return reporter.report(tf.constant([-1], tf.int64), {key: item[key][row][None] for key in reporter.keys})

        problem = tf.cond(is_new, report, lambda: problem)
        return problem, (problem, batch)

    @tf.autograph.experimental.do_not_convert
    def check(problem, batch):
        with tf.control_dependencies([tf.debugging.Assert(tf.strings.length(problem) == 0, [problem])]):
            return {key: value[:rows] for key, value in batch.items()}  # a view, without a copy

    filled = items
    if steps is not None:  # add rows of padding, which fill the last batch if rows are missing
        filled = items.concatenate(
            items.take(1).map(lambda item: {**item, "position": tf.fill([rows], tf.constant(-1, tf.int64))})
        )
    numbered = filled.enumerate().map(number).unbatch()
    loaded = numbered.map(lambda number, item: (number, loader.load(item)), tf.data.AUTOTUNE, deterministic=True)
    loaded = _batch(loaded.ignore_errors(), rows + 1)
    checked = tf.data.Dataset.zip(items, loaded).enumerate().scan(tf.constant(""), find).map(check)
    return checked if steps is None else checked.take(steps)
