"""TFRecord files of encoded images, in the layout that is usual for ImageNet."""

import collections
import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data import masks, splits
from keras_vit.data.labels import MAX_CLASSES, value_names
from keras_vit.data.readers import mask_folders, record_index, shards
from keras_vit.data.readers.data_set import DataSet
from keras_vit.data.record_files import RecordSource, Slice, finite, select, several_hot
from keras_vit.data.sources import Source
from keras_vit.util import checks, file_io

INFO_FILE = "dataset_info.json"
MASK = "image/segmentation/class/encoded"  # the name in DeepLab's files
_EXTENSION = r"(\.(?:tfrecords?|array_?records?))?"
_SHARD = re.compile(rf"(?P<split>[\w.]+?){_EXTENSION}-\d{{5}}-of-\d{{5}}{_EXTENSION}")
_INFO_TYPES = {"class_names": list, "value_names": list, "num_classes": int, "label_kind": str}
_INFO_TYPES |= {"records": dict, "written": dict}


def read(
    location: str,
    image: str = "image/encoded",
    label: str = "image/class/label",
    label_offset: int = 0,
    num_classes: int | None = None,
    class_names: list[str] | None = None,
    num_examples: int | None = None,
    label_kind: str | None = None,
    values: str | Sequence[str] | None = None,
    mask: str = MASK,
    shard_by: str = "rows",
    index: bool = True,
) -> DataSet:
    """Return TFRecord files of `tf.train.Example`s. `location` is a folder or a pattern.

    Files named `train-00000-of-00010` belong to the split "train". Files with other names are the split "all".
    `label_kind` is `"class"`, `"classes"`, or `"mask"` for PNG files in the feature `mask`. `values` names features
    with one number each. Files with indices are read in any order, unless `index=False` or `shard_by="files"`.
    """
    checks.choice("shard_by", shard_by, ("rows", "files"))
    checks.choice("index", index, (True, False))
    name = f"tfrecord:{location}"
    files, info = record_files_of(location)

    @functools.cache
    def positions(split: str) -> list[np.ndarray] | None:
        return record_index.read(files[split]) if index and shard_by == "rows" else None

    def counts(split: str) -> list[int]:
        return _counts(files[split], info, positions(split))

    def sizes() -> dict[str, int]:
        return {split: num_examples if num_examples is not None else sum(counts(split)) for split in files}

    def open_split(split: str) -> Source:
        parse, names, kind = example_parser(
            name, info, image, label, label_offset, num_classes, class_names, label_kind, values, mask
        )
        slices = _slices(name, files, counts, split, num_examples)
        used = splits.used(split, files)
        known = {path: at for key in used for path, at in zip(files[key], positions(key) or (), strict=False)}
        count = sum(item.take for item in slices) if num_examples is None else num_examples
        if all(item.path in known for item in slices):
            source = record_index.IndexedRecordSource(name, split, slices, known, parse, names, kind)
            if count != source.num_examples:
                raise ValueError(f"`num_examples` must be {source.num_examples} for {name}. Received: {num_examples}.")
            return source
        return RecordSource(name, split, slices, count, parse, names, kind, shard_by)

    return DataSet(sizes, open_split)


def example_parser(
    name: str,
    info: dict,
    image: str,
    label: str,
    label_offset: int,
    num_classes: int | None,
    class_names: list[str] | None,
    label_kind: str | None,
    values: str | Sequence[str] | None,
    mask: str,
) -> tuple[Callable[[tf.Tensor], dict[str, tf.Tensor]], list[str], str]:
    """Return the function that parses a serialized `tf.train.Example`, the names of the labels, and their kind.

    `info` is the content of `dataset_info.json`. The other arguments are as in `read`.
    """
    kind = "values" if values else label_kind or info.get("label_kind", "class")
    if kind == "values":
        names = list(value_names(values or info.get("value_names", ())))
        return _value_parser(image, names), names, kind
    names = _class_names(name, num_classes, class_names or info.get("class_names"), info)
    if kind == "mask":
        return _mask_parser(image, mask, label_offset, len(mask_folders.class_names(names))), names, kind
    return class_parser(image, label, label_offset, len(names), kind == "classes"), names, kind


def _class_names(name: str, num_classes: int | None, class_names: list[str] | None, info: dict) -> list[str]:
    """Return the names of the classes. If only their number is known, the names are `"0"`, `"1"` and so on."""
    if num_classes is None:
        num_classes = len(class_names) if class_names else info.get("num_classes")
    if num_classes is None:
        raise ValueError(
            f"How many classes do the labels of {name} have? Pass num_classes=, as in '{name}#num_classes=1000'. "
            f"(keras-vit make-tfrecords writes the number into {INFO_FILE}.)"
        )
    if checks.positive_int("num_classes", num_classes) > MAX_CLASSES:
        raise ValueError(f"`num_classes` must be at most {MAX_CLASSES:,}. Received: {num_classes} for {name}.")
    names = class_names or [str(number) for number in range(num_classes)]
    if len(names) != num_classes:
        raise ValueError(f"Expected {num_classes} names, one per class. Received: {len(names)} names.")
    return names


def _slices(
    name: str,
    files: dict[str, list[str]],
    counts: Callable[[str], list[int]],
    split: str,
    num_examples: int | None,
) -> list[Slice]:
    """Return the parts of the files that form a split. With `num_examples`, records are not counted."""
    if num_examples is not None:
        key = splits.named(split, files)
        if key not in files:
            raise ValueError(f"`num_examples` requires a whole split, one of {sorted(files)}. Received: {split!r}.")
        if any(map(file_io.is_remote, files[key])):
            return list(map(Slice, files[key]))
        split = key  # the records of local files are counted, to find damaged files
    whole = lambda key: list(map(Slice, files[key], itertools.repeat(0), counts(key)))  # noqa: E731
    return select(name, split, files, whole)


def _value_parser(image: str, names: Sequence[str]):
    features = {image: tf.io.FixedLenFeature([], tf.string)}
    features |= {name: tf.io.FixedLenFeature([], tf.float32) for name in names}

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        return {"image": example[image], "label": finite(tf.stack([example[name] for name in names]))}

    return parse


def _mask_parser(image: str, mask: str, label_offset: int, num_classes: int):
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in (image, mask)}

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        return {"image": example[image], "mask": masks.decode(example[mask], num_classes, label_offset)}

    return parse


def class_parser(
    image: str, label: str, label_offset: int, num_classes: int, several: bool
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """Return the function that parses a serialized `tf.train.Example` with one or several classes."""
    features = {
        image: tf.io.FixedLenFeature([], tf.string),
        label: tf.io.VarLenFeature(tf.int64) if several else tf.io.FixedLenFeature([], tf.int64),
    }

    def parse(record):
        example = tf.io.parse_single_example(record, features)
        labels = example[label].values if several else example[label]
        labels = tf.cast(labels, tf.int32) + label_offset
        inside = tf.reduce_all((labels >= 0) & (labels < num_classes))
        text = f"label out of range, expected 0 <= label < {num_classes} after adding label_offset={label_offset}:"
        with tf.control_dependencies([tf.debugging.Assert(inside, [text, labels])]):
            labels = tf.identity(labels)
        return {"image": example[image], "label": several_hot(labels, num_classes) if several else labels}

    return parse


def record_files_of(location: str) -> tuple[dict[str, list[str]], dict]:
    """Return the paths by split, and the content of `dataset_info.json`."""
    if tf.io.gfile.isdir(location):
        folder, paths = location, tf.io.gfile.glob(f"{location.rstrip('/')}/*-of-*")
    else:
        folder, paths = os.path.dirname(location), tf.io.gfile.glob(location)
    others = (".json", ".tmp", record_index.EXTENSION)
    paths = [path for path in paths if not path.endswith(others) and not os.path.basename(path).startswith(".")]
    paths = sorted(path for path in paths if not tf.io.gfile.isdir(path))
    if not paths:
        raise FileNotFoundError(f"No record file matches {location!r}.")
    files = collections.defaultdict(list)
    for path in paths:
        match = _SHARD.fullmatch(os.path.basename(path))
        files[splits.named(match["split"]) if match else "all"].append(path)
    if folder == location:
        shards.check_complete(location, files)
    info_path = f"{folder.rstrip('/')}/{INFO_FILE}" if folder else INFO_FILE
    return dict(files), read_info(info_path)


def read_info(path: str) -> dict:
    """Read `dataset_info.json`. The result is empty if the file does not exist."""
    if not tf.io.gfile.exists(path):
        return {}
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            info = json.loads(file_io.decode_text(file.read(), path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    for key, kind in _INFO_TYPES.items():
        if not isinstance(info, dict) or type(info.get(key, kind())) is not kind:
            raise ValueError(f"`{key}` in {path} must be a {kind.__name__}. Received: {str(info)[:100]}.")
    return info


def _counts(paths: list[str], info: dict, positions: list[np.ndarray] | None) -> list[int]:
    """Return the number of records of each file.

    Local files without indices are always counted, to find damaged files.
    """
    known = info.get("records", {})
    described = [known.get(os.path.basename(path)) for path in paths]
    if positions is None and any(file_io.is_remote(path) for path in paths):
        if None in described:
            raise ValueError(
                f"Counting the records of remote files would read all of them. Write indices, pass num_examples=, or "
                f"put a {INFO_FILE} with "
                f'{{"records": {{"{os.path.basename(paths[0])}": 1234, ...}}}} next to {paths[0]}.'
            )
        return described
    if positions is None and None in described:
        logging.info("Counting the records of %d files, starting with %s.", len(paths), paths[0])
    counts = list(map(count_records, paths)) if positions is None else [len(of_file) - 1 for of_file in positions]
    for path, count, stated in zip(paths, counts, described, strict=True):
        if stated is None and not count:
            raise ValueError(f"{path} has no records. Copy or write it again. If it should be empty, remove it.")
        if stated not in (None, count):
            raise ValueError(f"{path} has {count:,} records, but {INFO_FILE} states {stated!r}. Write the files again.")
    return counts


def count_records(path: str) -> int:
    """Count the records of a local TFRecord file by reading only their lengths."""
    return len(record_index.positions(path)) - 1
