"""Opening of every kind of source by name."""

import glob
import importlib
import inspect
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.data import separation, splits
from keras_vit.data.readers import record_index
from keras_vit.data.readers.data_set import DataSet
from keras_vit.data.sources import Source
from keras_vit.util import checks, source_specs, storage
from keras_vit.util.progress import Progress


def open_source(spec: str | os.PathLike[str], split: str = "train", **options: Any) -> Source:
    """Open a source of labeled images.

    Args:
        spec: Kind and path or name, such as `"digits"`, `"folder:/images"`, `"tfrecord:/data/train-*"` or
            `"tfds:cifar10"`. Options can follow, joined by `&`, as in `"folder:/images#test_fraction=0.1"`.
        split: Split in the notation of TensorFlow Datasets: `"train"`, `"train[:98%]"`, `"train[:10%]+test"`. Also
            `"validation(train)"`, a seventh of `"train"`, and `"fit(train)"`, the rest of it.
        **options: Options of the kind of source, see `docs/reference/sources.md`.

    Returns:
        The source, with `num_examples`, `num_classes` and `class_names`.

    Raises:
        ValueError: If the source, the split or an option does not exist, or the data are invalid.
        FileNotFoundError: If a file does not exist.

    Example:
        >>> source = open_source("digits", split="train[:90%]")
        >>> source.num_examples, source.num_classes
        (1293, 10)
    """
    part, whole = splits.part_of(split)
    opened = _read(spec, options).open(whole)
    return separation.part(opened, part, split) if part else opened


def split_sizes(spec: str | os.PathLike[str], **options: Any) -> dict[str, int]:
    """Return the splits of a source with their numbers of examples. The arguments are as in `open_source`.

    Example:
    >>> split_sizes("digits")
    {'train': 1437, 'test': 360}
    """
    return _read(spec, options).sizes()


def reader_of(kind: str) -> Callable[..., DataSet]:
    """Return the function that reads a kind of data set."""
    module, function = source_specs.KINDS[kind].reader.split(".")
    return getattr(importlib.import_module(f"keras_vit.data.readers.{module}"), function)


def _read(spec: str | os.PathLike[str], options: dict) -> DataSet:
    if not isinstance(spec, (str, os.PathLike)):
        raise ValueError(f"`spec` must be a string such as 'digits' or 'folder:/images'. Received: spec={spec!r}.")
    spec = os.fspath(spec)
    kind, location, written = source_specs.parts(spec)
    options = {**dict(map(source_specs.option, written)), **options}
    if kind not in source_specs.KINDS:
        examples = ", ".join(known.example for known in source_specs.KINDS.values())
        hint = checks.nearest(kind, source_specs.KINDS)
        if "/" in kind or os.path.isdir(spec):
            hint = f" For a folder of images write 'folder:' before its path: {f'folder:{spec}'!r}."
        raise ValueError(f"Unknown source {spec!r}.{hint} Available: {examples}.")
    example, read = source_specs.KINDS[kind].example, reader_of(kind)
    if ":" in example and not location:
        raise ValueError(f"The source {kind!r} needs a path or name: {example!r}. Received: {spec!r}.")
    known = list(inspect.signature(read).parameters)[1:]
    for name in options:
        if name not in known:
            has = f"It has: {', '.join(known)}." if known else "It has none."
            raise ValueError(f"The source {kind!r} has no option {name!r}.{checks.nearest(name, known)} {has}")
    if kind not in source_specs.BY_NAME:
        indexed = kind == "tfrecord" and options.get("index", True) and options.get("shard_by") != "files"
        location = _readable(location, indexed)
        options = {
            name: _readable(value) if name in source_specs.FOLDERS and isinstance(value, str) else value
            for name, value in options.items()
        }
    with Progress(f"Opening {spec}"):
        return read(location, **options)


def _readable(location: str, indexed: bool = False) -> str:
    """Return a location that TensorFlow can read. Data at other URLs are downloaded.

    For a list of files or a pattern, the whole folder is fetched. With `indexed`, the fetched record files are empty if
    all of them have indices: their records are read from the bucket.
    """
    if not storage.is_bucket_url(location):
        return location
    folder, _, name = location.rpartition("/")
    if not (glob.has_magic(name) or "{" in name or name.endswith((".csv", ".jsonl"))):
        folder, name = location, ""
    is_streamed = location.partition("://")[0] in tf.io.gfile.get_registered_schemes()
    copy = ""
    folder = folder.rstrip("/")
    has_copy = not glob.has_magic(folder) and folder.count("/") > 2  # several folders and a whole bucket have none
    if indexed and has_copy and (not is_streamed or tf.io.gfile.glob(f"{folder}/*{record_index.EXTENSION}")):
        copy = storage.fetched(folder, small=True)
    if not copy or not os.path.isdir(copy) or not record_index.is_complete(copy):
        if is_streamed:
            return location
        copy = storage.fetched(folder, checkpoint="all")
    return os.path.join(copy, name) if name else copy
