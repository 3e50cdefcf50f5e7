"""Sources of labeled images: base classes and shared checks."""

import concurrent.futures
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit import outputs
from keras_vit.data import errors, masks, seeds
from keras_vit.util import checks


@dataclasses.dataclass(frozen=True)
class Rows:
    """A worker's rows of each global batch: rows `first` to `first + count - 1` of `batch_size`."""

    batch_size: int
    first: int
    count: int

    def positions(self, step: tf.Tensor) -> tf.Tensor:
        """Return the positions of the worker's rows in the stream of examples, int64 `[count]`."""
        return step * self.batch_size + self.first + tf.range(self.count, dtype=tf.int64)

    def of(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the worker's rows of the global batch."""
        return {key: value[self.first : self.first + self.count] for key, value in batch.items()}


class Source:
    """Images with labels.

    Attributes:
        name: Name of the source, e.g. `"folder:/images"`.
        split: Part of the source, e.g. `"train[:98%]"`.
        num_examples: Number of examples in the split.
        label_kind: `"class"` if a label is one class number, int32. `"classes"` if a label is a set of classes, a
            float32 vector of zeros and ones. `"values"` if a label is one or several numbers, a float32 or float64
            vector.
            `"mask"` if examples have a "mask" instead of a "label": a class number for each pixel of the upright image,
            int32 `[H, W]`. Ignored pixels are 255, or 65,535 if there are more than 255 classes.
        class_names: Names of the classes, in the order of the class numbers. Empty for values.
        value_names: Names of the values. Empty for classes.
        encoded: Whether images are encoded files, which need a "decode" operation. Otherwise images are arrays.
        keys: Entries of an item that identify its example.
        origin: Function of the values of `keys` that returns the path or another name of the example, for messages.
        notes: Remarks about the data, for example about files that are not used.
        shard_by: `"files"` if every worker reads different files, so that batches depend on the number of workers;
            `"rows"` otherwise.

    Example:
    >>> source = open_source("digits", split="test")
    >>> source
    <'digits' 'test': 360 examples, 10 classes>
    >>> example = next(iter(source.examples()))
    >>> example["image"].shape, int(example["label"])
    (TensorShape([8, 8, 1]), 5)
    """

    keys: tuple[str, ...]
    origin: Callable[..., str]
    notes: tuple[str, ...] = ()
    shard_by: str = "rows"

    def __init__(self, name: str, split: str, num_examples: int, names: Sequence[str], label_kind: str = "class"):
        """`names` are the names of the classes or values."""
        self.name = name
        self.split = split
        self.num_examples = int(num_examples)
        self.label_kind = checks.choice("label_kind", label_kind, outputs.LABEL_KINDS)
        names = tuple(map(checks.composed, checks.sequence("names", names, "names")))
        self.class_names: tuple[str, ...] = () if self.kind.has_values else names
        self.value_names: tuple[str, ...] = names if self.kind.has_values else ()
        self.encoded = True

    @property
    def kind(self) -> outputs.Output:
        """Kind of output of a model that learns the labels."""
        return outputs.of(self.label_kind)

    @property
    def num_classes(self) -> int:
        """Number of classes. 0 for values."""
        return len(self.class_names)

    @property
    def num_outputs(self) -> int:
        """Number of classes or values."""
        return len(self.class_names or self.value_names)

    def labels(self) -> np.ndarray:
        """Return all labels in order: int32 `[n]` for one class, float `[n, num_outputs]` for classes and values.

        Masks in files are not collected. Read them from `examples`.
        """
        raise ValueError(f"Labels of the kind {self.label_kind!r} are read by examples(). Received: {self}.")

    def collect(self, labels: tf.data.Dataset) -> np.ndarray:
        """Return all labels of a dataset. Raises an UnreadableImageError if an example cannot be read."""
        try:
            return np.concatenate(list(labels.batch(4096).as_numpy_iterator()))
        except tf.errors.OpError:
            for origin, item in self.items():
                try:
                    self.load(item)
                except tf.errors.OpError as error:
                    raise errors.UnreadableImageError(origin, errors.describe(error)) from error
            raise

    def items(self) -> Iterator[tuple[str, dict[str, tf.Tensor]]]:
        """Yield the items of all examples in order, each with the name of the example for messages."""
        raise NotImplementedError

    def examples(self) -> Iterator[dict[str, tf.Tensor]]:
        """Yield all examples in order, as stored: {"image": encoded or uint8 [H, W, C], "label" or "mask"}."""
        return (self.load(item) for _, item in self.items())

    def train_items(self, rows: Rows, seed: int, start_step: int, shuffle_buffer: int) -> tf.data.Dataset:
        """Return an endless dataset whose elements are the items of one step.

        The entries of an element are vectors over the worker's rows. "position" is the position in the stream.
        """
        raise NotImplementedError

    def eval_items(self, rows: Rows, steps: int) -> tf.data.Dataset:
        """Return a dataset of `steps` elements as in `train_items`: one pass, in order. Padding has the position -1."""
        raise NotImplementedError

    def load(self, item: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the example of an item as {"image", "label" or "mask"}, with TensorFlow operations only."""
        raise NotImplementedError

    def read_groups(self, groups: tf.data.Dataset) -> tf.data.Dataset:
        """Return groups of items, `(row numbers, items)`, to which the bytes are added that are read together."""
        return groups

    def following(self, item: dict[str, tf.Tensor]) -> tf.data.Dataset:
        """Return the items that may replace an item whose image cannot be read."""
        raise NotImplementedError

    def every(self, number: int, held_out: bool, split: str) -> "Source":
        """Return every `number`-th example if `held_out`, and the other examples otherwise, as the split `split`."""
        raise ValueError(f"{self} cannot be divided. Name two splits as data.train_split and data.eval_split.")

    def __repr__(self) -> str:
        what = f"values {', '.join(self.value_names)}" if self.value_names else f"{self.num_classes:,} classes"
        return f"<{self.name!r} {self.split!r}: {self.num_examples:,} examples, {what}>"


class IndexedSource(Source):
    """A source whose examples can be fetched in any order: arrays in memory, or one file per image.

    Example:
    >>> source = open_source("digits")
    >>> source.labels().shape, source.origin(0)
    ((1437,), 'image 0 of digits')
    """

    keys = ("index",)

    def fetch(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return example `index` (int64 scalar) as {"image", "label" or "mask"}, with TensorFlow operations only."""
        raise NotImplementedError

    def train_items(self, rows: Rows, seed: int, start_step: int, shuffle_buffer: int) -> tf.data.Dataset:
        stream, size = seeds.key(seed, "order"), self.num_examples

        @tf.autograph.experimental.do_not_convert
        def of_step(step):
            position = rows.positions(step)
            return {"position": position, "index": seeds.permute(position % size, position // size, stream, size)}

        return tf.data.Dataset.range(start_step, tf.int64.max).map(of_step)

    def eval_items(self, rows: Rows, steps: int) -> tf.data.Dataset:
        @tf.autograph.experimental.do_not_convert
        def of_step(step):
            position = rows.positions(step)
            inside = position < self.num_examples
            return {"position": tf.where(inside, position, -1), "index": tf.where(inside, position, 0)}

        return tf.data.Dataset.range(steps).map(of_step)

    def load(self, item: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return self.fetch(item["index"])

    def items(self) -> Iterator[tuple[str, dict[str, tf.Tensor]]]:
        return self.items_at(range(self.num_examples))

    def items_at(self, indices: Iterable[int]) -> Iterator[tuple[str, dict[str, tf.Tensor]]]:
        """Yield the items of some examples with the names of the examples."""
        return ((self.origin(index), {"index": tf.constant(index, tf.int64)}) for index in indices)

    def following(self, item: dict[str, tf.Tensor]) -> tf.data.Dataset:
        """Return the items that may replace an item whose image cannot be read: the next half of the source."""
        offsets = tf.data.Dataset.range(1, self.num_examples // 2 + 1)
        return offsets.map(lambda offset: {**item, "index": (item["index"] + offset) % self.num_examples})


class StoredSource(IndexedSource):
    """A source with all images (arrays or paths) and labels in memory.

    Attributes:
        subset: Function of the name of a split and the indices of its examples that returns these examples as a source.
    """

    subset: Callable[[str, np.ndarray], Source]

    def __init__(
        self, name: str, split: str, items: Any, labels: np.ndarray, names: Sequence[str], label_kind: str = ""
    ):
        """`label_kind` defaults to `"class"` for labels of rank 1 and to `"classes"` for labels of rank 2."""
        super().__init__(name, split, len(items), names, label_kind or ("class", "classes")[labels.ndim - 1])
        self._items, self._labels = items, labels

    @functools.cached_property
    def _tables(self) -> tuple[tf.Tensor, tf.Tensor]:
        # Constants created inside a `tf.function` would be copied into its graph.
        with tf.init_scope(), tf.device("CPU"):
            return tf.constant(self._items), tf.constant(self._labels)

    def fetch(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
        items, labels = self._tables
        return {"image": tf.gather(items, index), self.kind.label_key: tf.gather(labels, index)}

    def labels(self) -> np.ndarray:
        return self._labels


class ArraySource(StoredSource):
    """Images in memory, uint8 `[n, H, W]` or `[n, H, W, C]`."""

    def __init__(
        self, name: str, split: str, images: np.ndarray, labels: np.ndarray, names: Sequence[str], label_kind: str = ""
    ):
        self.images = images[..., None] if images.ndim == 3 else images
        super().__init__(name, split, self.images, labels, names, label_kind)
        self.encoded = False

    def origin(self, index: int) -> str:
        return f"image {index} of {self.name}"


class FileSource(StoredSource):
    """Images in local or remote files, one file per image."""

    @property
    def paths(self) -> Sequence[str]:
        """Path of each image."""
        return self._items

    @functools.cached_property
    def files(self) -> Sequence[Any]:
        """Path of each image, or the member of a tar file."""
        return self.paths

    @property
    def relative_paths(self) -> list[str]:
        """Path of each image, relative to the folder of the data."""
        location = self.name.partition(":")[2]
        folder = f"{location.rstrip('/')}/" if os.path.isdir(location) else f"{os.path.dirname(location)}/"
        return [path.removeprefix(folder) for path in self.paths]

    def fetch(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
        example = super().fetch(index)
        return {**example, "image": tf.io.read_file(example["image"])}

    def origin(self, index: int) -> str:
        return self.paths[index]


class MaskFileSource(FileSource):
    """Images and masks in files: an image file and a mask file per example.

    `offset` is added to the masks' indices. `foreground` is the value of the pixels of class 1, such as 255.
    """

    def __init__(
        self,
        name: str,
        split: str,
        paths: Sequence[str],
        mask_paths: np.ndarray,
        names: Sequence[str],
        label_kind: str = "mask",
        offset: int = 0,
        foreground: int | None = None,
    ):
        super().__init__(name, split, paths, mask_paths, names, label_kind)
        self.mask_paths: list[str] = mask_paths.tolist()
        self._options = (self.num_classes, offset, foreground)

    def fetch(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
        example = super().fetch(index)
        path = example["mask"]
        try:
            return {**example, "mask": masks.decode(tf.io.read_file(path), *self._options, path)}
        except tf.errors.OpError as error:  # only raised eagerly, where error messages are created
            reason, name = errors.describe(error), path.numpy().decode()
            if name in reason:
                raise
            raise tf.errors.InvalidArgumentError(None, None, f"the mask {name}: {reason}") from error

    def labels(self) -> np.ndarray:
        return Source.labels(self)


def in_parallel(function: Callable[[Any], Any], items: Iterable[Any], threads: int = 0) -> Iterator[Any]:
    """Map a function over items in order, in `threads` threads (0: one per core), at most 256 items ahead."""
    items = iter(items)
    with concurrent.futures.ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        while chunk := list(itertools.islice(items, 256)):
            yield from pool.map(function, chunk)


def check_expansion(path: str, packed: int, unpacked: int) -> None:
    """Refuse a compressed file whose compression ratio indicates a decompression bomb."""
    if unpacked > 2**28 + 200 * packed:
        raise ValueError(
            f"{path} would unpack {packed:,} bytes to {unpacked:,}, like a decompression bomb. If the file is correct, "
            "write it without compression."
        )
