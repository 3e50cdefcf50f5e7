"""Record files: sources that can only be read in order.

Each epoch reads the files in a new order, several at a time, and shuffles within a buffer. The order depends only on
the seed and the epoch. To resume within an epoch, the earlier records are read again but not decoded.
"""

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data import seeds, splits
from keras_vit.data.sources import Rows, Source
from keras_vit.util import file_io

CYCLE_LENGTH = 16  # files that are read at the same time


@dataclasses.dataclass(frozen=True)
class Slice:
    """`take` records of the file at `path`, after the first `skip` records. `take=-1` means all."""

    path: str
    skip: int = 0
    take: int = -1


def select(name: str, split: str, named: Collection[str], whole: Callable[[str], Sequence[Slice]]) -> list[Slice]:
    """Return the slices of a split such as `"train[:80%]"`. `whole` returns the slices of one of the `named` splits."""
    slices = {key: whole(key) for key in named if key in splits.used(split, named)}
    sizes = {key: sum(item.take for item in of_split) for key, of_split in slices.items()} or dict.fromkeys(named, 0)
    selected = []
    for part in splits.parse(split, sizes, name):
        first = 0
        for item in slices[part.name]:
            start, stop = max(part.start - first, 0), min(part.stop - first, item.take)
            if start < stop:
                selected.append(Slice(item.path, item.skip + start, stop - start))
            first += item.take
    return selected


def _tfrecords(path: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(path, buffer_size=2**20).skip(skip).take(take)


def _local_tfrecords(path: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> tf.data.Dataset:
    """Return `take` records. After a damaged record, which ends the reading of its file, all records are empty."""
    # `ignore_errors` never returns if the file does not exist, so another dataset opens the file first.
    opened = tf.data.FixedLengthRecordDataset(path, 1, buffer_size=1).take(1).filter(lambda byte: tf.constant(False))
    readable = _tfrecords(path, skip, take).ignore_errors()
    lost = tf.data.Dataset.from_tensors("").repeat(tf.maximum(take, 0))
    return opened.concatenate(readable).concatenate(lost).take(take)


def check_record(record: tf.Tensor) -> tf.Tensor:
    """Return a serialized record. Fails if it is empty, which is how readers return records that cannot be read."""
    text = "its file is damaged here or at an earlier record; write or copy the file again"
    with tf.control_dependencies([tf.debugging.Assert(tf.strings.length(record) > 0, [text])]):
        return tf.identity(record)


class RecordSource(Source):
    """Examples in record files. `parse` turns a serialized record into {"image", "label" or "mask"}.

    `records` maps the path, `skip` and `take` of a slice to a dataset of its records, in which records that cannot be
    read are empty. By default, the file is a TFRecord file.

    With `shard_by="rows"`, every worker reads all files but decodes only its own rows, so that the global batch does
    not depend on the number of workers. With `shard_by="files"`, every worker reads different files.
    """

    def __init__(
        self,
        name: str,
        split: str,
        slices: Sequence[Slice],
        num_examples: int,
        parse: Callable[[tf.Tensor], dict],
        names: Sequence[str],
        label_kind: str = "class",
        shard_by: str = "rows",
        records: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.data.Dataset] | None = None,
    ):
        super().__init__(name, split, num_examples, names, label_kind)
        self.slices = list(slices)
        self.counts = [item.take for item in slices]
        self.parse = parse
        self._part: tuple[int, bool] | None = None  # arguments of `every`
        self.shard_by = shard_by
        # An error of a remote file may be temporary. The same record can then be read after a restart.
        remote = any(file_io.is_remote(item.path) for item in self.slices)
        self._records = records or (_tfrecords if remote else _local_tfrecords)

    def every(self, number: int, held_out: bool, split: str) -> "RecordSource":
        """See `Source.every`. All records are read, but only the records of the part are decoded."""
        if min(self.counts) < 0:
            raise ValueError(f"To divide {self}, the number of records of each file must be known.")
        part = copy.copy(self)
        chosen = [len(range(-(file + item.skip) % number, item.take, number)) for file, item in enumerate(self.slices)]
        part.counts = chosen if held_out else np.subtract(self.counts, chosen).tolist()
        part.split, part.num_examples, part._part = split, sum(part.counts), (number, held_out)
        return part

    def load(self, item: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return self.parse(check_record(item["record"]))

    def labels(self) -> np.ndarray:
        """Return all labels. This reads all records but does not decode the images."""
        if self.kind.has_masks:
            return super().labels()
        items = tf.data.Dataset.range(len(self.slices)).flat_map(self.read)
        return self.collect(items.map(lambda item: self.load(item)["label"], tf.data.AUTOTUNE))

    def items(self) -> Iterator[tuple[str, dict[str, tf.Tensor]]]:
        for file in range(len(self.slices)):
            for item in self.read(tf.constant(file, tf.int64)):
                yield self.origin(file, int(item["number"])), item

    keys = ("file", "number")

    def following(self, item: dict[str, tf.Tensor]) -> tf.data.Dataset:
        """Return the items that may replace an unreadable item.

        These are the later items of its file, then the earlier items, then the items of the next file.
        """
        file, number = item["file"], item["number"]
        behind = self.read(file).filter(lambda record: record["number"] > number)
        before = self.read(file).take_while(lambda record: record["number"] < number)
        others = self.read((file + 1) % len(self.slices))
        return behind.concatenate(before).concatenate(others).map(lambda record: {**item, **record})

    def origin(self, file: int, number: int) -> str:
        """Return the name of a record, for messages."""
        return f"record {number} of {self.slices[file].path}"

    def read(self, file: tf.Tensor) -> tf.data.Dataset:
        """Return the records of slice number `file` (int64 scalar), as {"record", "file", "number"}."""
        paths = tf.constant([item.path for item in self.slices])
        skip, take = (
            tf.gather(tf.constant([getattr(item, field) for item in self.slices], tf.int64), file)
            for field in ("skip", "take")
        )
        records = self._records(tf.gather(paths, file), skip, take).enumerate(start=skip)
        if self._part is not None:
            every, held_out = self._part
            records = records.filter(lambda number, record: ((file + number) % every == 0) == held_out)
        return records.map(lambda number, record: {"record": record, "file": file, "number": number})

    def train_items(self, rows: Rows, seed: int, start_step: int, shuffle_buffer: int) -> tf.data.Dataset:
        files, size, per_step = self._files_of(rows)
        stream, count = seeds.key(seed, "files"), len(files)

        @tf.autograph.experimental.do_not_convert
        def of_epoch(epoch):
            # `tf.random.set_seed` in other code must not change the order.
            tf.compat.v1.get_default_graph().seed = 1
            order = seeds.permute(tf.range(count, dtype=tf.int64), tf.fill([count], epoch), stream, count)
            dataset = tf.data.Dataset.from_tensor_slices(tf.gather(files, order))
            dataset = dataset.interleave(
                self.read,
                cycle_length=min(CYCLE_LENGTH, count),
                block_length=1,
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )
            buffer_seed = (epoch + seeds.key(seed, "buffer")) % (2**31 - 1)
            return dataset.shuffle(min(shuffle_buffer, size), seed=buffer_seed, reshuffle_each_iteration=False)

        first_epoch, passed = divmod(start_step * per_step, size)
        items = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(of_epoch).skip(passed)
        items = items.batch(per_step, drop_remainder=True).enumerate(start=start_step)

        @tf.autograph.experimental.do_not_convert
        def own_rows(step, item):
            return {**(rows.of(item) if per_step == rows.batch_size else item), "position": rows.positions(step)}

        return items.map(own_rows)

    def _files_of(self, rows: Rows) -> tuple[tf.Tensor, int, int]:
        """Return a worker's files, the number of examples in them, and the number of examples it reads per step."""
        files = tf.range(len(self.slices), dtype=tf.int64)
        worker, workers = rows.first // rows.count, rows.batch_size // rows.count
        if self.shard_by == "rows" or workers == 1:
            return files, self.num_examples, rows.batch_size
        if len(self.slices) < workers:
            raise ValueError(
                f"With shard_by='files', there must be a file for each worker. Received: {len(self.slices)} files of "
                f"{self.name!r} for {workers} workers."
            )
        counts = self.counts[worker::workers]
        if min(counts) < 0:
            raise ValueError("shard_by='files' needs the number of records of each file; `num_examples` is not enough.")
        return files[worker::workers], sum(counts), rows.count

    def eval_items(self, rows: Rows, steps: int) -> tf.data.Dataset:
        size, batch_size = self.num_examples, rows.batch_size
        items = tf.data.Dataset.range(len(self.slices)).flat_map(self.read)
        # A wrong number of records in a file is an error, because it would shift all following examples.
        items = items.apply(tf.data.experimental.assert_cardinality(size))
        filler = {"record": tf.constant(""), "file": tf.constant(0, tf.int64), "number": tf.constant(0, tf.int64)}
        items = items.concatenate(tf.data.Dataset.from_tensors(filler).repeat(steps * batch_size - size))
        items = items.prefetch(2 * batch_size).batch(batch_size, drop_remainder=True).enumerate()

        @tf.autograph.experimental.do_not_convert
        def own_rows(step, item):
            position = rows.positions(step)
            return {**rows.of(item), "position": tf.where(position < size, position, -1)}

        return items.map(own_rows)


def several_hot(labels: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Convert the class numbers of an example, `[m]`, to a vector of zeros and ones, float32 `[num_classes]`."""
    return tf.minimum(tf.reduce_sum(tf.one_hot(labels, num_classes), axis=0), 1.0)


def finite(values: tf.Tensor) -> tf.Tensor:
    """Return the values of an example. Fails if a value is not finite."""
    text = "value out of range, expected finite numbers:"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(tf.math.is_finite(values)), [text, values])]):
        return tf.identity(values)
