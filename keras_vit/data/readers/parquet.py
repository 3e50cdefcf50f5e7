"""Parquet files with a column of encoded images and a column of classes, in the layout of Hugging Face's data sets."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.labels import classes_up_to
from keras_vit.data.python_ops import call_python
from keras_vit.data.readers import shards
from keras_vit.data.readers.data_set import DataSet, about_classes, noted
from keras_vit.data.readers.tfrecord import class_parser
from keras_vit.data.record_files import RecordSource, Slice, select
from keras_vit.data.sources import Source, check_expansion
from keras_vit.util import checks, file_io, formatting

_MAX_GROUP = 2**30  # bytes of a row group


def read(
    location: str,
    image: str = "image",
    label: str = "label",
    class_names: list[str] | None = None,
    shard_by: str = "rows",
) -> DataSet:
    """Return the images in Parquet files. `location` is a folder, a pattern, or a path with braces such as `{00..15}`.

    The column `image` contains encoded images, or structs with a field `bytes`. The column `label` contains class
    numbers or class names. By default, the class names come from Hugging Face's metadata or from the column.
    A row group is read as a whole. With `shard_by="files"`, each worker reads different row groups.
    """
    checks.choice("shard_by", shard_by, ("rows", "files"))
    name = f"parquet:{location}"
    files = shards.by_split(location, ".parquet")

    def groups(split: str) -> list[Slice]:
        return [group for path in files[split] for group in _groups(path, image, label)]

    def sizes() -> dict[str, int]:
        return {split: sum(group.take for group in groups(split)) for split in files}

    def open_split(split: str) -> Source:
        slices = select(name, split, files, groups)
        names = class_names or _class_names(name, [path for paths in files.values() for path in paths], label)
        numbers = {name: number for number, name in enumerate(names)}
        count = sum(item.take for item in slices)

        def records(*rows: tf.Tensor) -> tf.data.Dataset:
            read = lambda *rows: [_readable_rows(rows, image, label, numbers)]  # noqa: E731
            (serialized,) = call_python(read, rows, [tf.TensorSpec([], tf.string)])
            examples = tf.io.parse_tensor(serialized, tf.string)
            return tf.data.Dataset.from_tensor_slices(tf.ensure_shape(examples, [None]))

        parse = class_parser("image", "label", 0, len(names), several=False)
        source = RecordSource(name, split, slices, count, parse, names, "class", shard_by, records)
        labels = {
            key: np.concatenate([_labels(path, label, numbers) for path in paths]) for key, paths in files.items()
        }
        return noted(source, about_classes(labels, names))

    return DataSet(sizes, open_split)


def _open(path: str) -> Any:
    """Return a `pyarrow.parquet.ParquetFile`."""
    pyarrow = file_io.import_pyarrow()
    with _naming(path):
        return pyarrow.parquet.ParquetFile(path)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the file in errors of PyArrow."""
    try:
        yield
    except (file_io.import_pyarrow().ArrowException, OSError) as error:
        reason = formatting.one_line(error)
        raise ValueError(f"{path} cannot be read as a Parquet file ({reason}). Is the download complete?") from error


def _groups(path: str, image: str, label: str) -> list[Slice]:
    """Return the row groups of a file."""
    file = _open(path)
    types = {field.name: str(field.type) for field in file.schema_arrow.empty_table().flatten().schema}
    is_image = {types.get(name) for name in (image, f"{image}.bytes")} & {"binary", "large_binary"}
    if not is_image or not types.get(label, "").startswith(("int", "uint", "string", "large_string")):
        raise ValueError(
            f"{path} must have a column {image!r} of encoded images and a column {label!r} of class numbers or names. "
            f"Received: {types}. Choose columns with image= and label=."
        )
    slices, first = [], 0
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        columns = [group.column(index) for index in range(group.num_columns)]
        check_expansion(path, sum(c.total_compressed_size for c in columns), group.total_byte_size)
        if group.total_byte_size > _MAX_GROUP:
            raise ValueError(
                f"A row group must have at most {_MAX_GROUP:,} bytes. Received: {group.total_byte_size:,} bytes, "
                f"{group.num_rows:,} rows, in {path}. Write the file again with row_group_size=100."
            )
        if group.num_rows:
            slices.append(Slice(path, first, group.num_rows))
            first += group.num_rows
    if not slices:
        logging.warning("%s has no rows.", path)
    return slices


def _class_names(name: str, paths: Sequence[str], label: str) -> list[str]:
    """Return the names in Hugging Face's metadata or, without metadata, the labels of all files in order."""
    try:
        metadata = json.loads((_open(paths[0]).schema_arrow.metadata or {})[b"huggingface"])
        names = metadata["info"]["features"][label]["names"]
        if isinstance(names, list) and all(isinstance(text, str) for text in names):
            return names
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    found: set[Any] = set().union(*(_column(path, label).unique().to_pylist() for path in paths)) - {None}
    return (
        classes_up_to(max(found, default=0), name) if all(isinstance(value, int) for value in found) else sorted(found)
    )


def _column(path: str, label: str) -> Any:
    """Return the labels of a file, a `pyarrow.ChunkedArray`."""
    with _naming(path):
        return _open(path).read([label]).column(0)


def _labels(path: str, label: str, numbers: Mapping[str, int]) -> np.ndarray:
    """Return the class numbers of a file, int64 `[n]`. A label that is not a class becomes -1."""
    values = _column(path, label).to_pylist()
    return np.array([value if isinstance(value, int) else numbers.get(value, -1) for value in values], np.int64)


def _readable_rows(rows: Sequence[Any], image: str, label: str, numbers: Mapping[str, int]) -> bytes:
    """Return the result of `_rows`, or empty examples if the row group cannot be read."""
    try:
        return _rows(rows, image, label, numbers)
    except (ValueError, OSError) as error:
        logging.warning("%s", error)
        return tf.make_tensor_proto([b""] * int(rows[2]), tf.string).SerializeToString()


def _rows(rows: Sequence[Any], image: str, label: str, numbers: Mapping[str, int]) -> bytes:
    """Return `take` rows after the first `skip` rows, within one row group, as a serialized tensor of examples."""
    path, skip, take = (np.asarray(value).item() for value in rows)
    file, group = _open(path.decode()), 0
    while skip >= (count := file.metadata.row_group(group).num_rows):
        group, skip = group + 1, skip - count
    with _naming(path.decode()):
        table = file.read_row_group(group, [image, label], use_threads=False).slice(skip, take).flatten()
    images = table.column(image if image in table.column_names else f"{image}.bytes").to_pylist()
    examples = []
    for content, value in zip(images, table.column(label).to_pylist(), strict=True):
        number = value if isinstance(value, int) else numbers.get(value, -1)
        features = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content or b""])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        }
        examples.append(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    if len(examples) != take:
        raise ValueError(f"{path.decode()} is damaged: it has fewer rows than it states.")
    return tf.make_tensor_proto(examples, tf.string).SerializeToString()
