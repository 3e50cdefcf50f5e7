"""Batches for training and evaluation.

A training batch is a pure function of the source, the seed and the global step. Row `r` of step `s` has the position
`p = s * batch_size + r`. The position determines the example and the random numbers of its augmentation. The example
follows from a permutation per epoch, which is computed and not stored. A run can therefore resume at any step without
delay, and with the same images as an uninterrupted run. The global batch does not depend on the number of workers:
worker `i` of `S` reads the rows that start at `i * batch_size / S`.
"""

from collections.abc import Callable, Iterator

import tensorflow as tf

from keras_vit.data import errors, masks, mix, parse, preprocess
from keras_vit.data.errors import BadImageLog, log_of
from keras_vit.data.loading import Repair, load_batches
from keras_vit.data.sources import Rows, Source
from keras_vit.util import checks

SHUFFLE_BUFFER = 50_000
# Maps a step and the size of the global batch to additional entries of the global batch.
Draw = Callable[[tf.Tensor, int], dict[str, tf.Tensor]]


def train_batches(
    source: Source,
    pp: str,
    batch_size: int,
    seed: int = 0,
    start_step: int = 0,
    shard_index: int = 0,
    num_shards: int = 1,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    shuffle_buffer: int = SHUFFLE_BUFFER,
    on_bad_image: str | BadImageLog = "error",
    draw: Draw | None = None,
    as_tuples: bool = False,
) -> tf.data.Dataset:
    """Return an endless dataset of training batches.

    Args:
        source: Result of `open_source`.
        pp: Preprocessing string. The part of the preprocessing that runs on the device (see `preprocess.split`) is left
            to `device_function`.
        batch_size: Number of examples per step over all workers.
        seed: Seed of the order and the augmentation.
        start_step: Global step of the first batch.
        shard_index: Index of this worker.
        num_shards: Number of workers.
        mixup: Alpha of mixup, which the training step applies with `mix.blend`. 0 disables it.
        cutmix: Alpha of CutMix, which the training step applies with `mix.blend`. 0 disables it.
        shuffle_buffer: Size of the shuffle buffer, in encoded examples, for sources that can only be read in order.
        on_bad_image: Policy for images that cannot be read. `"error"` stops (see `image_errors`). `"skip"` replaces the
            image by the next readable image, and stops if more than half of the images cannot be read. A `BadImageLog`
            does the same as `"skip"` and lists the skipped images.
        draw: Function that maps a step and `batch_size` to additional entries of the global batch.
        as_tuples: Whether to return `(images, labels)` for `model.fit`, with the whole preprocessing string applied, as
            float32. Cannot be combined with `mixup`, `cutmix` or `draw`.

    Returns:
        Dataset of `{"image": uint8 [b, H, W, C], "label": int32 [b] or float32 [b, classes]}` with
        `b = batch_size / num_shards`. With `mixup` or `cutmix`, there is also `"mix": float32 [b]`, the same number in
        each row. A source of masks has `"mask": int32 [b, H, W]` instead of the label.

    Raises:
        ValueError: If the preprocessing does not produce images of a fixed size, or an argument is out of range.

    Example:
        >>> source = open_source("digits")
        >>> batches = train_batches(source, "resize(16)|value_range(-1, 1)", batch_size=32)
        >>> next(iter(batches))["image"].shape
        TensorShape([32, 16, 16, 1])
    """
    rows = _rows(source, batch_size, shard_index, num_shards)
    mixing = mix.check(mixup, cutmix)
    checks.positive_int("seed", seed, minimum=0)
    checks.positive_int("shuffle_buffer", shuffle_buffer)
    if as_tuples and (mixing or draw is not None):
        raise ValueError(
            "as_tuples=True excludes `mixup`, `cutmix` and `draw`, which are part of the package's own training step. "
            f"Received: mixup={mixup}, cutmix={cutmix}, draw={draw}."
        )
    if mixing and source.kind.has_masks:
        raise ValueError(
            f"Masks exclude `mixup` and `cutmix`. Received: mixup={mixup}, cutmix={cutmix}. Set both to 0."
        )
    function = _function(source, pp)

    def load(item):
        return _checked(source, function(source.load(item), seed, item["position"]))

    items = source.train_items(rows, seed, start_step, shuffle_buffer)
    repair = Repair(source, load, on_bad_image, training=True)
    batches = load_batches(items, load, rows.count, repair)
    if mixing:

        def add_mix(step, batch):
            return {**batch, "mix": tf.fill([rows.count], mix.draw(seed, step, mixup, cutmix))}

        batches = batches.enumerate(start=start_step).map(add_mix)
    return _finish(_add_draws(batches, draw, start_step, rows), pp if as_tuples else None)


def eval_batches(
    source: Source,
    pp: str,
    batch_size: int,
    shard_index: int = 0,
    num_shards: int = 1,
    on_bad_image: str | BadImageLog = "error",
    draw: Draw | None = None,
    as_tuples: bool = False,
) -> tf.data.Dataset:
    """Return the batches of one pass over a source, in its order.

    All batches have the same size: the last batch is padded with images of zeros. `"valid"` is 0 for padding and for
    skipped images, and 1 otherwise. All workers get the same number of batches.

    Args:
        source: Result of `open_source`.
        pp: Preprocessing string without random operations.
        batch_size: Number of examples per batch over all workers.
        shard_index: Index of this worker.
        num_shards: Number of workers.
        on_bad_image: Policy for images that cannot be read, as in `train_batches`. Skipped images are marked as not
            valid instead of being replaced, and their number is not limited.
        draw: As in `train_batches`, with the index of the batch as the step.
        as_tuples: As in `train_batches`. Rows that are not valid are removed, so that batches can be smaller. The
            number of batches is known unless images are skipped.

    Returns:
        Dataset of `{"image", "label" or "mask", "valid": float32 [b]}`.

    Raises:
        ValueError: If the preprocessing is random or does not produce images of a fixed size.

    Example:
        >>> source = open_source("digits", "test")
        >>> batches = eval_batches(source, "resize(16)|value_range(-1, 1)", batch_size=100)
        >>> sum(int(batch["valid"].numpy().sum()) for batch in batches)
        360
    """
    if preprocess.is_random(pp):
        raise ValueError(f"Preprocessing for evaluation must not be random. Received: {pp!r}.")
    rows = _rows(source, batch_size, shard_index, num_shards)
    function = _function(source, pp)

    def load(item):
        return {**_checked(source, function(source.load(item))), "valid": tf.constant(1.0)}

    steps = -(-source.num_examples // batch_size)
    items = source.eval_items(rows, steps)
    repair = Repair(source, load, on_bad_image, training=False)
    batches = load_batches(items, load, rows.count, repair)
    batches = _add_draws(batches, draw, 0, rows).apply(tf.data.experimental.assert_cardinality(steps))
    if not as_tuples:
        return _finish(batches)
    # The last batch of a worker may consist of padding only.
    batches = batches.take(-(-(source.num_examples - rows.first) // batch_size))
    return _finish(batches, pp, may_be_empty=repair.log is not None)


def originals(source: Source, pp: str, on_bad_image: str, other_pp: str | None = None) -> Iterator[dict]:
    """Yield preprocessed images in their original sizes, with their stored masks, as arrays.

    The preprocessing is `other_pp`, or by default `pp` without crops and resizing.
    """
    kept = (call.text for call in parse.parse(pp) if call.op.kind != parse.GEOMETRIC)
    pp = other_pp or "|".join(kept)
    on_host, to_model_range, log = preprocess.host_function(pp), preprocess.device_function(pp), log_of(on_bad_image)
    for origin, item in source.items():
        try:
            example = source.load(item)
            image = to_model_range(on_host({"image": example["image"]})["image"][None])[0]
        except tf.errors.OpError as error:
            errors.skip(origin, errors.describe(error), log)
            continue
        yield {"image": image.numpy(), "mask": example["mask"].numpy()}


def _rows(source: Source, batch_size: int, shard_index: int, num_shards: int) -> Rows:
    if not isinstance(source, Source):
        raise ValueError(
            f"`source` must be the result of keras_vit.data.open_source. Received: source={checks.described(source)}."
        )
    checks.positive_int("batch_size", batch_size)
    checks.positive_int("num_shards", num_shards)
    if not 0 <= shard_index < num_shards:
        raise ValueError(
            f"0 <= shard_index < num_shards={num_shards} is expected. Received: shard_index={shard_index}."
        )
    count = checks.divisible("batch_size", batch_size, "num_shards", num_shards) // num_shards
    return Rows(batch_size, shard_index * count, count)


def _function(source: Source, pp: str) -> Callable[..., dict]:
    function = preprocess.host_function(pp)
    return masks.processed(function, source.num_classes) if source.kind.has_masks else function


def _checked(source: Source, example: dict) -> dict:
    target = source.kind.label_key
    if "image" not in example or target not in example:
        raise ValueError(
            f"'image' and {target!r} must remain after preprocessing. Received: {sorted(example)} from {source.name!r}."
        )
    shape = example["image"].shape
    if example["image"].dtype == tf.string or not shape.is_fully_defined():
        raise ValueError(
            f"Images of {source.name!r} do not have one fixed size after preprocessing: {shape}. Add an operation that "
            "sets the size, such as resize(224); encoded images need 'decode|' first."
        )
    return example


def _add_draws(batches: tf.data.Dataset, draw: Draw | None, start: int, rows: Rows) -> tf.data.Dataset:
    """Add this worker's rows of the entries that `draw` returns for the global batch."""
    if draw is None:
        return batches

    def add(step, batch):
        return {**batch, **rows.of(draw(step, rows.batch_size))}

    return batches.enumerate(start=start).map(add)


def _tuples(batches: tf.data.Dataset, pp: str) -> tf.data.Dataset:
    """Convert batches to `(images, labels)`: remove rows that are not valid, and apply the device's part of `pp`."""
    function = preprocess.device_function(pp)

    def apply(batch):
        images, labels = function(batch["image"]), batch["mask" if "mask" in batch else "label"]
        if "valid" not in batch:
            return images, labels
        return tf.boolean_mask(images, batch["valid"] > 0), tf.boolean_mask(labels, batch["valid"] > 0)

    return batches.map(apply, num_parallel_calls=tf.data.AUTOTUNE)


def _finish(batches: tf.data.Dataset, pp: str | None = None, may_be_empty: bool = False) -> tf.data.Dataset:
    """Set the options of a dataset. With `pp`, return tuples. With `may_be_empty`, drop empty batches."""
    if pp is not None:
        batches = _tuples(batches, pp)
    if may_be_empty:  # the number of batches becomes unknown
        batches = batches.filter(lambda images, _: tf.shape(images)[0] > 0)
    options = tf.data.Options()
    options.deterministic = True
    # The batches already contain only this worker's rows. Sharding them again would lose examples.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return batches.prefetch(tf.data.AUTOTUNE).with_options(options)
