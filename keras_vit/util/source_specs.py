"""Texts that name a data set, such as `"folder:/images#test_fraction=0.1"`, before it is opened."""

import ast
import glob
import itertools
import math
import os
import re
from typing import NamedTuple

from keras_vit.util import file_io


class Kind(NamedTuple):
    """A kind of data set."""

    example: str  # with a colon if the kind needs a path or a name
    reader: str  # function in `keras_vit.data.readers`


KINDS = {
    "digits": Kind("digits", "npz.read_digits"),
    "folder": Kind("folder:/images", "folder.read"),
    "images": Kind("images:/unlabeled", "folder.read_unlabeled"),
    "manifest": Kind("manifest:/list.csv", "manifest.read"),
    "tfrecord": Kind("tfrecord:/folder", "tfrecord.read"),
    "arrayrecord": Kind("arrayrecord:/folder", "arrayrecord.read"),
    "webdataset": Kind("webdataset:/folder", "webdataset.read"),
    "parquet": Kind("parquet:/folder", "parquet.read"),
    "tfds": Kind("tfds:cifar10", "tfds.read"),
    "vtab": Kind("vtab:clevr_count", "vtab.read"),
    "npz": Kind("npz:/arrays.npz", "npz.read"),
    "idx": Kind("idx:/folder", "idx.read"),
    "fashion_mnist": Kind("fashion_mnist", "idx.read_fashion_mnist"),
}
BY_NAME = ("tfds", "vtab")  # kinds of sources without a path
FOLDERS = ("root", "data_dir", "manual_dir", "masks")  # options that are paths
# Options that fingerprints of records and masks do not cover.
_FEATURES = ("image", "label", "label_offset", "foreground", "mask")
_OPTIONS = re.compile(r"#(\w+=.*)$", re.DOTALL)
_BRACES = re.compile(r"\{([^{}]*)\}")
_MAX_FILES = 100_000


def parts(spec: str) -> tuple[str, str, list[str]]:
    """Return kind, location and options of a source."""
    match = _OPTIONS.search(spec)
    kind, _, location = spec[: match.start() if match else None].partition(":")
    return kind, location, match[1].split("&") if match else []


def option(text: str) -> tuple[str, object]:
    """Return the name and the value of an option."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"Options of a source are written name=value and joined by '&'. Received: {text!r}.")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def absolute(spec: str) -> str:
    """Replace relative paths in a source with absolute paths, so that it can be opened from any directory."""
    kind, location, options = parts(spec)
    if kind not in BY_NAME:
        location = _absolute_path(location)
    for number, (name, value) in enumerate(map(option, options)):
        if name in FOLDERS:
            options[number] = f"{name}={_absolute_path(str(value))}"
    return kind + (f":{location}" if location else "") + (f"#{'&'.join(options)}" if options else "")


def read_alike(first: str, second: str) -> bool:
    """Return whether two sources read the same features of each example. The paths of the sources are ignored."""
    one, other = (dict(map(option, parts(spec)[2])) for spec in (first, second))
    return all(one.get(name) == other.get(name) for name in _FEATURES)


def exists(spec: str) -> bool:
    """Return whether the files of a source exist. A source that is not local counts as existing."""
    kind, location, _ = parts(spec)
    path = _absolute_path(location)
    paths = [path, *expanded(path)]
    return kind in BY_NAME or not _is_local(location) or any(os.path.exists(path) or glob.glob(path) for path in paths)


def _is_local(location: str) -> bool:
    return bool(location) and not file_io.is_remote(location)


def _absolute_path(location: str) -> str:
    return os.path.abspath(location.removeprefix("file://")) if _is_local(location) else location


def expanded(location: str) -> list[str]:
    """Return the paths that braces expand to: numbers, as in `{00..15}`, or words, as in `{train,val}`."""
    parts = _BRACES.split(location)  # alternating: text, content of braces
    choices = [_choices(part) if number % 2 else [part] for number, part in enumerate(parts)]
    if math.prod(map(len, choices)) > _MAX_FILES:
        raise ValueError(f"Braces must expand to at most {_MAX_FILES:,} files. Received: {location!r}.")
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _choices(text: str) -> list[str]:
    bounds = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text)
    if not bounds:
        return text.split(",")
    first, last = int(bounds[1]), int(bounds[2])
    if not 0 <= last - first < _MAX_FILES:
        raise ValueError(f"Braces must have increasing numbers, such as {{000..015}}. Received: {{{text}}}.")
    width = len(bounds[1]) if bounds[1].startswith("0") else 0
    return [f"{number:0{width}d}" for number in range(first, last + 1)]
