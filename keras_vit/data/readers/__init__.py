"""Opening of every kind of source by name."""

import ast
import glob
import inspect
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from keras_vit.data.readers import folder, idx, manifest, npz, parquet, shards, tfds, tfrecord, vtab, webdataset
from keras_vit.data.readers.data_set import DataSet
from keras_vit.data.sources import Source
from keras_vit.util import checks, file_io, storage
from keras_vit.util.progress import Progress

_OPTIONS = re.compile(r"#(\w+=.*)$", re.DOTALL)
_BY_NAME = ("tfds", "vtab")  # kinds of sources without a path
_FOLDERS = ("root", "data_dir", "manual_dir", "masks")  # options that are paths
# Options that fingerprints of records and masks do not cover.
_FEATURES = ("image", "label", "label_offset", "foreground", "mask")


class _Reader(NamedTuple):
    read: Callable[..., DataSet]
    usage: str  # with a colon if the kind needs a path or name


READERS = {
    "digits": _Reader(npz.read_digits, "digits"),
    "folder": _Reader(folder.read, "folder:/images"),
    "images": _Reader(folder.read_unlabeled, "images:/unlabeled"),
    "manifest": _Reader(manifest.read, "manifest:/list.csv"),
    "tfrecord": _Reader(tfrecord.read, "tfrecord:/folder"),
    "webdataset": _Reader(webdataset.read, "webdataset:/folder"),
    "parquet": _Reader(parquet.read, "parquet:/folder"),
    "tfds": _Reader(tfds.read, "tfds:cifar10"),
    "vtab": _Reader(vtab.read, "vtab:clevr_count"),
    "npz": _Reader(npz.read, "npz:/arrays.npz"),
    "idx": _Reader(idx.read, "idx:/folder"),
    "fashion_mnist": _Reader(idx.read_fashion_mnist, "fashion_mnist"),
}


def open_source(spec: str | os.PathLike[str], split: str = "train", **options: Any) -> Source:
    """Open a source of labeled images.

    Args:
        spec: Kind and path or name, such as `"digits"`, `"folder:/images"`, `"tfrecord:/data/train-*"` or
            `"tfds:cifar10"`. Options can follow, joined by `&`, as in `"folder:/images#test_fraction=0.1"`.
        split: Split in the notation of TensorFlow Datasets: `"train"`, `"train[:98%]"`, `"train[:10%]+test"`.
        **options: Options of the kind of source, see `docs/data.md`.

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
    return _read(spec, options).open(split)


def split_sizes(spec: str | os.PathLike[str], **options: Any) -> dict[str, int]:
    """Return the splits of a source with their numbers of examples. The arguments are as in `open_source`.

    Example:
    >>> split_sizes("digits")
    {'train': 1437, 'test': 360}
    """
    return _read(spec, options).sizes()


def absolute(spec: str) -> str:
    """Replace relative paths in a source with absolute paths, so that it can be opened from any directory."""
    kind, location, options = _parts(spec)
    if kind not in _BY_NAME:
        location = _absolute_path(location)
    for number, (name, value) in enumerate(map(_option, options)):
        if name in _FOLDERS:
            options[number] = f"{name}={_absolute_path(str(value))}"
    return kind + (f":{location}" if location else "") + (f"#{'&'.join(options)}" if options else "")


def read_alike(first: str, second: str) -> bool:
    """Return whether two sources read the same features of each example. The paths of the sources are ignored."""
    one, other = (dict(map(_option, _parts(spec)[2])) for spec in (first, second))
    return all(one.get(name) == other.get(name) for name in _FEATURES)


def exists(spec: str) -> bool:
    """Return whether the file or folder of a source exists, or its pattern matches a file.

    A source that is not local counts as existing.
    """
    kind, location, _ = _parts(spec)
    path = _absolute_path(location)
    paths = [path, *shards.expanded(path)]
    return kind in _BY_NAME or not _is_local(location) or any(os.path.exists(path) or glob.glob(path) for path in paths)


def _parts(spec: str) -> tuple[str, str, list[str]]:
    """Return kind, location and options of a source."""
    match = _OPTIONS.search(spec)
    kind, _, location = spec[: match.start() if match else None].partition(":")
    return kind, location, match[1].split("&") if match else []


def _is_local(location: str) -> bool:
    return bool(location) and not file_io.is_remote(location)


def _absolute_path(location: str) -> str:
    return os.path.abspath(location.removeprefix("file://")) if _is_local(location) else location


def _read(spec: str | os.PathLike[str], options: dict) -> DataSet:
    if not isinstance(spec, (str, os.PathLike)):
        raise ValueError(f"`spec` must be a string such as 'digits' or 'folder:/images'. Received: spec={spec!r}.")
    spec = os.fspath(spec)
    kind, location, written = _parts(spec)
    options = {**dict(map(_option, written)), **options}
    if kind not in READERS:
        usage = ", ".join(reader.usage for reader in READERS.values())
        hint = checks.nearest(kind, READERS)
        if "/" in kind or os.path.isdir(spec):
            hint = f" For a folder of images write 'folder:' before its path: {f'folder:{spec}'!r}."
        raise ValueError(f"Unknown source {spec!r}.{hint} Available: {usage}.")
    reader = READERS[kind]
    if ":" in reader.usage and not location:
        raise ValueError(f"The source {kind!r} needs a path or name: {reader.usage!r}. Received: {spec!r}.")
    known = list(inspect.signature(reader.read).parameters)[1:]
    for name in options:
        if name not in known:
            has = f"It has: {', '.join(known)}." if known else "It has none."
            raise ValueError(f"The source {kind!r} has no option {name!r}.{checks.nearest(name, known)} {has}")
    if kind not in _BY_NAME:
        location = _readable(location)
        options = {
            name: _readable(value) if name in _FOLDERS and isinstance(value, str) else value
            for name, value in options.items()
        }
    with Progress(f"Opening {spec}"):
        return reader.read(location, **options)


def _readable(location: str) -> str:
    """Return a location that TensorFlow can read. Data at other addresses are fetched.

    For a list of files or a pattern, the whole folder is fetched.
    """
    if not storage.is_address(location) or location.partition("://")[0] in tf.io.gfile.get_registered_schemes():
        return location
    folder, _, name = location.rpartition("/")
    if glob.has_magic(name) or "{" in name or name.endswith((".csv", ".jsonl")):
        return os.path.join(storage.fetched(folder, checkpoint="all"), name)
    return storage.fetched(location, checkpoint="all")


def _option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"Options of a source are written name=value and joined by '&'. Received: {text!r}.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
