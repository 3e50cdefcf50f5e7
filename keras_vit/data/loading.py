"""Loading and batching of items. An item identifies the example of a row."""

from collections.abc import Callable

import tensorflow as tf

from keras_vit.data.bad_images import Repair
from keras_vit.data.python_ops import call_python

# Items are loaded in groups of at least this size, or all rows of a step: each group needs a dataset that leaves out
# the unreadable images. To create a dataset takes as long as to load one or two small images.
GROUP = 32


def load_batches(items: tf.data.Dataset, load: Callable[[dict], dict], rows: int, repair: Repair) -> tf.data.Dataset:
    """Load examples in parallel and batch them in order.

    `items` has one element per step, whose entries are vectors over `rows` rows. Rows with the position -1 become
    zeros. `repair` fills the rows whose images cannot be read.
    """
    spec = {key: tf.TensorSpec(value.shape[1:], value.dtype) for key, value in items.element_spec.items()}
    traced = tf.function(load, autograph=False).get_concrete_function(spec)

    def zeros():
        return {key: tf.zeros(value.shape, value.dtype) for key, value in traced.structured_outputs.items()}

    @tf.autograph.experimental.do_not_convert
    def load_row(item):
        return tf.cond(item["position"] < 0, zeros, lambda: traced(item))

    size = next(size for size in range(min(rows, GROUP), rows + 1) if rows % size == 0)

    def split(item):
        numbered = (tf.range(rows), item)
        return tf.nest.map_structure(lambda value: tf.reshape(value, [-1, size, *value.shape[1:]]), numbered)

    @tf.autograph.experimental.do_not_convert
    def load_group(numbers, group):
        """Return the numbers of the readable rows with their examples, and -1 with zeros for each unreadable row."""
        numbered = tf.data.Dataset.from_tensor_slices((numbers, group))
        loaded = numbered.map(lambda number, item: (number, load_row(item))).ignore_errors()
        missing = tf.data.Dataset.from_tensors((-1, zeros())).repeat(size)
        loaded = loaded.concatenate(missing).batch(size, drop_remainder=True).take(1)
        return group, *loaded.get_single_element()

    @tf.autograph.experimental.do_not_convert
    def join(*groups):
        step = tf.nest.map_structure(lambda value: tf.reshape(value, [rows, *value.shape[2:]]), groups)
        _, numbers, examples = step

        def call(*values):
            return tf.nest.flatten(repair(*tf.nest.pack_sequence_as(step, values)))

        def repaired():
            values = call_python(call, tf.nest.flatten(step), tf.nest.flatten(examples))
            return tf.nest.pack_sequence_as(examples, values)

        return tf.cond(tf.reduce_all(numbers >= 0), lambda: examples, repaired)

    parallel = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}
    groups = items.map(split).unbatch().map(load_group, **parallel)
    return groups.batch(rows // size, drop_remainder=True, **parallel).map(join)
