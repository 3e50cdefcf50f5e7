"""Images that cannot be read: a run stops and names the file, or goes on without it and keeps a list."""

from collections.abc import Callable

import tensorflow as tf
from absl import logging

from keras_vit import _checks
from keras_vit.data.callbacks import call_python
from keras_vit.data.errors import bad_image, describe
from keras_vit.data.sources import ArraySource, IndexedSource, Source

# So many images are tried in place of one that cannot be read.
ATTEMPTS = 4


class Log:
    """Counts and lists images that were skipped.

    Attributes:
        reasons: {path: why it could not be read}.
        count: how often an image was skipped; one file counts again in each epoch.
    """

    def __init__(self):
        self.reasons: dict[str, str] = {}
        self.count = 0

    def add(self, origin: str, reason: str) -> None:
        """Notes one image; its first time is logged."""
        self.count += 1
        if origin not in self.reasons:
            self.reasons[origin] = reason
            logging.warning("Skipping %s: %s (%d such files so far)", origin, reason, len(self.reasons))


def batches(
    items: tf.data.Dataset,
    load: Callable[[dict], dict],
    source: Source,
    rows: int,
    on_bad_image: str | Log,
    training: bool,
    steps: int | None = None,
) -> tf.data.Dataset:
    """Loads examples in parallel, in order, and batches them.

    Args:
        items: one element a step: a dictionary of vectors of `rows`, with "position"; rows whose position is -1 are
            filled with zeros.
        load: loads one item, of scalars.
        source: where the images come from.
        rows: size of a batch.
        on_bad_image: `"error"`, `"skip"` or a `Log`.
        training: whether a skipped image is replaced by another; otherwise it becomes a row of zeros.
        steps: number of batches, where it is finite.
    """
    if not isinstance(on_bad_image, Log):
        _checks.choice("on_bad_image", on_bad_image, ("error", "skip"))
    spec = {key: tf.TensorSpec(value.shape[1:], value.dtype) for key, value in items.element_spec.items()}
    load_again = load  # outside of graphs, where errors are short
    load = tf.function(load, autograph=False).get_concrete_function(spec)  # traced once, used at several places
    zeros = {key: (value.shape, value.dtype) for key, value in load.structured_outputs.items()}

    @tf.autograph.experimental.do_not_convert
    def load_or_fill(item):
        fill = lambda: {key: tf.zeros(shape, dtype) for key, (shape, dtype) in zeros.items()}  # noqa: E731
        if training and isinstance(source, ArraySource):
            return load(item)
        return tf.cond(item["position"] < 0, fill, lambda: load(item))

    if isinstance(source, ArraySource):  # nothing is decoded, nothing can fail
        loaded = items.unbatch().map(load_or_fill, tf.data.AUTOTUNE, deterministic=True)
        return _batch(loaded, rows)
    if on_bad_image == "error" and isinstance(source, IndexedSource):
        return _checked_batches(items, load_or_fill, load_again, source, rows, steps)
    return _batch(_one_by_one(items, load_or_fill, load_again, source, rows, on_bad_image, training), rows)


def _batch(dataset: tf.data.Dataset, rows: int) -> tf.data.Dataset:
    return dataset.batch(rows, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _checked_batches(items, load_or_fill, load_again, source, rows, steps):
    """The fast way: failed elements drop out of the stream, which the numbers of the others then tell.

    After each step's rows comes one that cannot fail. So a batch is complete when its numbers are, and a stream in
    which everything fails still moves.
    """

    def number(step, item):
        guard = {key: tf.concat([value, value[:1]], 0) for key, value in item.items()}
        guard["position"] = tf.concat([item["position"], [-1]], 0)
        return step * (rows + 1) + tf.range(rows + 1, dtype=tf.int64), guard

    if steps is not None:  # behind the last batch, enough to fill it when some of its rows are missing
        extra = items.take(1).map(lambda item: {**item, "position": tf.fill([rows], tf.constant(-1, tf.int64))})
        items = items.concatenate(extra)
    numbered = items.enumerate().map(number).unbatch()
    loaded = numbered.map(lambda number, item: (number, load_or_fill(item)), tf.data.AUTOTUNE, deterministic=True)
    loaded = _batch(loaded.ignore_errors(), rows + 1)

    def explain(first):
        step, row = divmod(int(first), rows + 1)
        item = next(iter(items.skip(step).take(1)))
        item = {key: value[row] for key, value in item.items()}
        return bad_image(source.origin(int(item["index"])), reason_of(load_again, item)).encode()

    @tf.autograph.experimental.do_not_convert
    def find(problem, numbered_batch):
        """The first problem stays: what follows a missing row stands in wrong batches."""
        step, (numbers, batch) = numbered_batch
        expected = step * (rows + 1) + tf.range(rows + 1, dtype=tf.int64)
        missing = numbers != expected
        first = expected[tf.argmax(missing)]
        is_new = tf.reduce_any(missing) & (tf.strings.length(problem) == 0)
        problem = tf.cond(is_new, lambda: call_python(explain, [first]) + "\n", lambda: problem)
        return problem, (problem, batch)

    @tf.autograph.experimental.do_not_convert
    def check(problem, batch):
        with tf.control_dependencies([tf.debugging.Assert(tf.strings.length(problem) == 0, [problem])]):
            return {key: value[:rows] for key, value in batch.items()}  # a view, without a copy

    checked = loaded.enumerate().scan(tf.constant(""), find).map(check)
    return checked if steps is None else checked.take(steps)


def _one_by_one(items, load_or_fill, load_again, source, rows, on_bad_image, training):
    """The careful way: each image is a small dataset of its own, in which others stand behind it to take its place."""
    log = on_bad_image if isinstance(on_bad_image, Log) else Log()
    skip = on_bad_image != "error"
    indexed = isinstance(source, IndexedSource)

    def note(item):
        """Loads once more, outside of graphs, to learn why it fails."""
        keys = ("index",) if indexed else ("file", "number")
        origin = source.origin(*(int(item[key]) for key in keys))
        reason = log.reasons.get(origin) or reason_of(load_again, item)
        if skip:
            log.add(origin, reason)
        return bad_image(origin, reason).encode()

    def noted(item):
        keys = sorted(item)
        call = lambda *values: note(dict(zip(keys, values, strict=True)))  # noqa: E731
        return call_python(call, [item[key] for key in keys])

    def zeros(item):
        return load_or_fill({**item, "position": tf.constant(-1, tf.int64)})

    @tf.autograph.experimental.do_not_convert
    def after_failure(failed, replacement=None):
        """Notes that `failed` cannot be read and loads `replacement`, or zeros; without `skip` it is an error."""
        text = noted(failed)
        with tf.control_dependencies([text if skip else tf.debugging.Assert(False, [text])]):
            example = zeros(failed) if replacement is None else load_or_fill(replacement)
            return tf.nest.map_structure(tf.identity, example)

    @tf.autograph.experimental.do_not_convert
    def give_up(failed):
        with tf.control_dependencies([tf.debugging.Assert(False, [noted(failed)])]):
            return tf.nest.map_structure(tf.identity, zeros(failed))

    def fallbacks(item, others):
        """What is tried in place of an item, one after the other."""
        if not (skip and training):
            return tf.data.Dataset.from_tensors(item).map(after_failure)
        tried = [item] + [{key: value[i] for key, value in others.items()} for i in range(ATTEMPTS - 1)]
        last = tf.data.Dataset.from_tensors(tried[-1]).map(give_up)
        for failed, replacement in reversed(list(zip(tried, tried[1:], strict=False))):
            one = tf.data.Dataset.from_tensors((failed, replacement)).map(after_failure).ignore_errors()
            last = one.concatenate(last)
        return last

    def candidates(item, others):
        first = tf.data.Dataset.from_tensors(item).map(load_or_fill).ignore_errors()
        # By flat_map, so that the fallbacks are built only where they are needed.
        return first.concatenate(tf.data.Dataset.from_tensors((item, others)).flat_map(fallbacks)).take(1)

    def with_others(item):
        """To each row the rows that may stand in for it, augmented as it would be."""
        if not (skip and training):
            return item, {}
        if indexed:  # those that follow in the source
            others = {"index": (item["index"][:, None] + range(1, ATTEMPTS)) % source.num_examples}
        else:  # those that follow in the batch
            others = {
                key: tf.stack([tf.roll(value, -i, 0) for i in range(1, ATTEMPTS)], 1) for key, value in item.items()
            }
        return item, {**others, "position": tf.repeat(item["position"][:, None], ATTEMPTS - 1, axis=1)}

    stream = items.map(with_others).unbatch()
    return stream.interleave(
        candidates, cycle_length=16, block_length=1, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )


def reason_of(load: Callable[[dict], dict], item: dict) -> str:
    """Loads an item once more and says why it fails."""
    try:
        load(item)
    except tf.errors.OpError as error:
        return describe(error)
    return "could not be read this time, but now it can"
