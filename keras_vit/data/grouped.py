"""Sources that Python reads. One call reads a group of rows, because calls of Python cannot run in parallel."""

import contextlib
import copy
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.python_ops import call_python
from keras_vit.data.sources import IndexedSource


class GroupedSource(IndexedSource):
    """A source whose images are parts of large files, read by a Python function of several rows.

    Attributes:
        is_remote: Whether the files are in a bucket. Errors of a bucket may be temporary: they end the reading.
    """

    is_remote = False

    def read_rows(self, indices: np.ndarray) -> Sequence[bytes]:
        """Return the stored bytes of examples, int64 `[n]`."""
        raise NotImplementedError

    def example(self, index: tf.Tensor, content: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return example `index` (int64 scalar) from its stored bytes, with TensorFlow operations only."""
        raise NotImplementedError

    def read_groups(self, groups: tf.data.Dataset) -> tf.data.Dataset:
        @tf.autograph.experimental.do_not_convert
        def read(numbers, items):
            contents = tf.TensorSpec(items["index"].shape, tf.string)
            (contents,) = call_python(lambda indices: [self._readable(indices)], [items["index"]], [contents])
            return numbers, {**items, "content": contents}

        return groups.map(read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def _readable(self, indices: np.ndarray) -> np.ndarray:
        """Return the stored bytes of examples. They are empty for an example that cannot be read from a disk."""
        contents = np.full(len(indices), b"", object)
        try:
            contents[:] = self.read_rows(indices)
        except Exception:  # of a few rows; the type depends on the library that reads the file
            if self.is_remote:
                raise
            for row in range(len(indices)):
                with contextlib.suppress(Exception):
                    contents[row] = self.read_rows(indices[row : row + 1])[0]
        return contents

    def load(self, item: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return self.example(item["index"], item["content"]) if "content" in item else self.fetch(item["index"])

    def fetch(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
        read = lambda index: [self.read_rows(index[None])[0]]  # noqa: E731
        (content,) = call_python(read, [index], [tf.TensorSpec([], tf.string)])
        return self.example(index, content)


class RandomRecordSource(GroupedSource):
    """Serialized examples in record files that can be read in any order.

    Attributes:
        described: Descriptions of the files, for the fingerprint.
    """

    described: Sequence[str] = ()

    def __init__(
        self,
        name: str,
        split: str,
        count: int,
        parse: Callable[[tf.Tensor], dict[str, tf.Tensor]],
        names: Sequence[str],
        label_kind: str,
    ):
        super().__init__(name, split, count, names, label_kind)
        self._parse = parse
        self._numbers = np.arange(count)  # of the examples of the split

    def read_records(self, numbers: Sequence[int]) -> Sequence[bytes]:
        """Return records by their numbers."""
        raise NotImplementedError

    def every(self, number: int, held_out: bool, split: str) -> "RandomRecordSource":
        part = copy.copy(self)
        part._numbers = self._numbers[(self._numbers % number == 0) == held_out]
        part.split, part.num_examples = split, len(part._numbers)
        return part

    def read_rows(self, indices: np.ndarray) -> Sequence[bytes]:
        return self.read_records(self._numbers[indices].tolist())

    def example(self, index: tf.Tensor, content: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._parse(content)

    def origin(self, index: int) -> str:
        return f"example {index} of {self.name} {self.split}"

    def labels(self) -> np.ndarray:
        if self.kind.has_masks:
            return super().labels()
        indices = tf.data.Dataset.range(self.num_examples)
        return self.collect(indices.map(lambda index: self.fetch(index)["label"], tf.data.AUTOTUNE))
