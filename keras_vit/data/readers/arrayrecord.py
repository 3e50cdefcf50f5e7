"""ArrayRecord files of `tf.train.Example`s, which can be read in any order from disks and Google Cloud Storage."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_vit.data.grouped import RandomRecordSource
from keras_vit.data.readers import tfrecord
from keras_vit.data.readers.data_set import DataSet
from keras_vit.data.record_files import Slice, select
from keras_vit.data.sources import in_parallel
from keras_vit.util import extras, file_io

_THREADS = 64  # that count the records of files


def read(
    location: str,
    image: str = "image/encoded",
    label: str = "image/class/label",
    label_offset: int = 0,
    num_classes: int | None = None,
    class_names: list[str] | None = None,
    label_kind: str | None = None,
    values: str | Sequence[str] | None = None,
    mask: str = tfrecord.MASK,
) -> DataSet:
    """Return ArrayRecord files of the examples that `tfrecord.read` describes, in files with the same names."""
    name = f"arrayrecord:{location}"
    files, info = tfrecord.record_files_of(location)

    @functools.cache
    def slices(split: str) -> list[Slice]:
        counts = in_parallel(_count, files[split], threads=_THREADS)
        return list(map(Slice, files[split], itertools.repeat(0), counts))

    def sizes() -> dict[str, int]:
        return {split: sum(item.take for item in slices(split)) for split in files}

    def open_split(split: str) -> ArrayRecordSource:
        parse, names, kind = tfrecord.example_parser(
            name, info, image, label, label_offset, num_classes, class_names, label_kind, values, mask
        )
        parts = [f"{part.path}[{part.skip}:{part.skip + part.take}]" for part in select(name, split, files, slices)]
        records = _package().ArrayRecordDataSource(parts)
        return ArrayRecordSource(name, split, records, parse, names, kind, file_io.is_remote(location))

    return DataSet(sizes, open_split)


def _count(path: str) -> int:
    """Return the number of records of a file. `array_record` returns 0 for a missing or damaged file."""
    if count := _package().array_record_module.ArrayRecordReader(path).num_records():
        return count
    raise ValueError(f"{path} must be a complete ArrayRecord file with records. Copy or write it again, or remove it.")


class ArrayRecordSource(RandomRecordSource):
    """Serialized examples in ArrayRecord files."""

    def __init__(
        self,
        name: str,
        split: str,
        records: Any,
        parse: Callable[[tf.Tensor], dict[str, tf.Tensor]],
        names: Sequence[str],
        label_kind: str,
        is_remote: bool,
    ):
        """`records` is an `ArrayRecordDataSource`."""
        super().__init__(name, split, len(records), parse, names, label_kind)
        self._records, self.is_remote = records, is_remote

    def read_records(self, numbers: Sequence[int]) -> Sequence[bytes]:
        # The package reads several records in new threads. For local files, they take more time than the records.
        return self._records.__getitems__(numbers) if self.is_remote else [self._records[n] for n in numbers]


def _package() -> Any:
    with extras.needed("data", "The package array_record is missing"):
        from array_record.python import array_record_data_source
    return array_record_data_source
