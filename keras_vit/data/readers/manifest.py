"""Lists of image files with labels, as CSV or as JSON lines."""

import collections
import csv
import io
import json
import math
import posixpath
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_vit.data import separation, splits
from keras_vit.data.labels import numbered, value_names
from keras_vit.data.readers import mask_folders
from keras_vit.data.readers.data_set import DataSet, of_files
from keras_vit.util import checks, file_io

_MAX_SIZE = 2**32  # total number of elements of labels that are vectors
_MAX_VALUE = float(np.finfo(np.float32).max)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class _Entry(NamedTuple):
    line: int
    fields: dict[str, Any]  # by column: a string, or in JSON also a list of strings

    def text(self, column: str) -> str:
        """Return the text of a field, or an empty string if the field is missing."""
        value = self.fields.get(column)
        return value if isinstance(value, str) else ""


def read(
    location: str,
    root: str | None = None,
    test_fraction: float = 0.2,
    separator: str = ";",
    class_names: list[str] | None = None,
    values: str | Sequence[str] | None = None,
    classes: mask_folders.Classes = None,
    label_offset: int = 0,
    foreground: int | None = None,
) -> DataSet:
    """Return the images in a list: CSV, with the names of the columns in the first line, or JSON lines.

    `classes` and `foreground` are for masks, whose paths are in the column `mask`. See `docs/reference/sources.md`.
    """
    if not tf.io.gfile.exists(location) or tf.io.gfile.isdir(location):
        raise FileNotFoundError(f"There is no file {location!r}.")
    with tf.io.gfile.GFile(location, "rb") as file:
        text = file_io.decode_text(file.read(), location)
    columns, entries = (_json_lines if location.lower().endswith(".jsonl") else _csv)(location, text)
    kind, columns_of_labels = _label_columns(location, columns, values)
    names: Sequence[str] = columns_of_labels
    if not entries:
        raise ValueError(f"{location} lists no images.")
    _check(location, "have a path", [(entry.line, entry.fields) for entry in entries if not entry.text("path")])
    root = posixpath.dirname(location) if root is None else root
    if kind == "mask":
        labels, names = _mask_paths(location, entries, root), mask_folders.class_names(classes, root)
    elif kind == "values":
        labels = _values(location, entries, columns_of_labels)
    else:
        several = separator if kind == "classes" else None
        labels, names = _class_labels(location, entries, class_names, several, label_offset)
    paths = [posixpath.join(root, entry.text("path")) for entry in entries]
    keys = _keys(paths, entries)
    named_splits = [splits.named(entry.text("split")) for entry in entries]
    if any(named_splits):
        without = [(entry.line, "no split") for entry in entries if not entry.text("split")]
        _check(location, "name its split, because other lines do", without)
        order = splits.split_indices(keys, np.zeros(len(keys)), 0.0)["all"]
        indices = {
            split: order[np.array([named_splits[i] == split for i in order])] for split in dict.fromkeys(named_splits)
        }
    else:
        groups = np.zeros(len(keys)) if kind == "mask" else labels
        indices = splits.split_indices(separation.merged(keys, paths), groups, test_fraction)
    name, notes = f"manifest:{location}", _about_repeated(keys)
    if kind == "mask":
        return mask_folders.of_pairs(name, paths, labels, names, label_offset, foreground, indices, notes)
    return of_files(name, paths, labels, names, indices, notes, kind)


def _check(location: str, expected: str, wrong: Sequence[tuple[int, Any]]) -> None:
    """Raise a ValueError for wrong lines. `wrong` contains the number of each wrong line and the value found there."""
    if wrong:
        others = [f"line {line}" for line, _ in wrong[1:]]
        raise ValueError(
            f"Line {wrong[0][0]} of {location} must {expected}. Received: {wrong[0][1]}."
            f"{f' The same applies to {checks.listed(others)}.' if others else ''}"
        )


def _keys(paths: Sequence[str], entries: Sequence[_Entry]) -> list[str]:
    """Return the path of each entry as written. Entries of the same image have the same key, and so the same split."""
    written: dict[str, str] = {}
    same = [checks.composed(posixpath.normpath(path)) for path in paths]  # ./a.png is a.png
    for path, entry in zip(same, entries, strict=True):
        written[path] = min(written.get(path, entry.text("path")), entry.text("path"))
    return [written[path] for path in same]


def _about_repeated(keys: Sequence[str]) -> tuple[str, ...]:
    """Return a note about images that several entries name. Training also logs their other splits and labels."""
    repeated = [key for key, count in collections.Counter(keys).items() if count > 1]
    return (f"{len(repeated):,} images are listed more than once: {checks.listed(repeated)}.",) if repeated else ()


def _csv(location: str, text: str) -> tuple[list[str], list[_Entry]]:
    """Return the columns and entries of a list in CSV."""
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    columns = reader.fieldnames = [column.strip() for column in reader.fieldnames or ()]
    if len(set(filter(None, columns))) < len(list(filter(None, columns))):
        raise ValueError(f"The columns of {location} must have different names. Received: {', '.join(columns)}.")
    entries, wrong = [], []
    try:
        for row in reader:
            if any(row.get(None, ())):  # fields without a column
                wrong.append((reader.line_num, row))
            fields = {key: file_io.unescape_formula((value or "").strip()) for key, value in row.items() if key}
            entries.append(_Entry(reader.line_num, fields))
    except csv.Error as error:  # a field of more than 128 KiB, or a zero byte
        raise ValueError(f"Line {reader.line_num + 1} of {location} cannot be read: {error}.") from error
    _check(location, "have at most one field per column (put a text with a comma in double quotes)", wrong)
    return columns, entries


def _json_lines(location: str, text: str) -> tuple[list[str], list[_Entry]]:
    """Return the keys of the first object and the entries of a list with one JSON object per line."""
    entries, wrong = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line, object_pairs_hook=_fields)
                if not isinstance(row, dict):
                    raise ValueError("it is not an object")
                entries.append(_Entry(number, {key: _as_text(value) for key, value in row.items()}))
            except (ValueError, RecursionError) as error:
                wrong.append((number, f"{line[:100]} ({error})"))
    _check(location, "be a JSON object", wrong)
    return list(entries[0].fields) if entries else [], entries


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _as_text(value: Any) -> Any:
    """Convert a JSON value to the string that a CSV file would contain, and a list to a list of strings."""
    if isinstance(value, list):
        return [_as_text(item) for item in value]
    return "" if value is None or isinstance(value, dict) else str(value).strip()


def _label_columns(location: str, columns: Sequence[str], values: str | Sequence[str] | None) -> tuple[str, list[str]]:
    """Return the kind of the labels and the names of their columns."""
    if values is not None:
        kind, names = "values", list(value_names(values))
    elif "label" not in columns and "labels" not in columns and "value" in columns:
        kind, names = "values", ["value"]
    elif "label" not in columns and "labels" not in columns and "mask" in columns:
        kind, names = "mask", ["mask"]
    else:
        kind, names = ("classes", ["labels"]) if "labels" in columns else ("class", ["label"])
    missing = [name for name in ("path", *names) if name not in columns]
    if missing:
        others = " (or 'labels', 'value' or 'mask')" if kind == "class" else ""
        advice = " To use another column of numbers, add #values=NAME." if kind == "class" else ""
        if len(columns) == 1 and re.search("[;\t]", columns[0]):
            advice = " Separate the columns with commas."
        raise ValueError(
            f"The first line of {location} must name the columns 'path' and {', '.join(map(repr, names))}{others}, "
            f"and optionally 'split'. Received: {', '.join(columns) or 'an empty file'}."
            f"{checks.nearest(missing[0], columns)}{advice}"
        )
    return kind, names


def _values(location: str, entries: Sequence[_Entry], names: Sequence[str]) -> np.ndarray:
    """Return the numbers in the columns `names`, float64 `[n, k]`."""
    texts = [[entry.text(name) for name in names] for entry in entries]
    values = np.array([[float(text) if _NUMBER.fullmatch(text) else math.nan for text in row] for row in texts])
    wrong = [(entries[row], names[column]) for row, column in np.argwhere(~(abs(values) <= _MAX_VALUE))]
    received = [(e.line, f"{str(e.fields.get(name, 'nothing'))[:100]!r} in {name!r}") for e, name in wrong]
    _check(location, f"have finite numbers, such as 1.5, in the columns {', '.join(map(repr, names))}", received)
    return values


def _mask_paths(location: str, entries: Sequence[_Entry], root: str) -> np.ndarray:
    """Return the paths in the column `mask`, an array of strings `[n]`."""
    without = [(entry.line, entry.fields) for entry in entries if not entry.text("mask")]
    _check(location, "have a path in the column 'mask'", without)
    return np.array([posixpath.join(root, entry.text("mask")) for entry in entries], object)


def _class_labels(
    location: str, entries: list[_Entry], class_names: list[str] | None, separator: str | None, label_offset: int
) -> tuple[np.ndarray, list[str]]:
    """Return the labels of all entries and the names of the classes, which are numbers if all labels are numbers.

    `separator` separates the labels in the column `labels`. If it is None, the column `label` contains one label.
    """
    pairs = [(row, name) for row, entry in enumerate(entries) for name in _names(entry, separator)]
    wrong = [entries[row] for row, name in pairs if not name or not isinstance(name, str)]
    _check(location, "have a path and a label", [(entry.line, entry.fields) for entry in wrong])
    named = [(row, checks.composed(name)) for row, name in pairs]
    texts = [name for _, name in named]
    found = sorted(set(texts))
    if class_names is None and separator is None and all(map(_NUMBER.fullmatch, found)):
        fraction = next((name for name in found if not name.lstrip("+-").isdecimal()), None)
        if fraction:
            raise ValueError(
                f"The labels of {location} are numbers with a fraction, such as {fraction}. To predict numbers, pass "
                f"values=label, as in 'manifest:{location}#values=label'. Class numbers must be integers from 0."
            )
    origin = lambda index: f"line {entries[named[index][0]].line} of {location}"  # noqa: E731
    labels, class_names = numbered(texts, class_names, location, origin, label_offset)
    if separator is None:
        return labels, class_names
    if len(entries) * len(class_names) > _MAX_SIZE:
        raise ValueError(
            f"{location} has {len(entries):,} entries with any number of {len(class_names):,} labels, which would take "
            f"{len(entries) * len(class_names) / 2**28:,.0f} GiB."
        )
    vectors = np.zeros((len(entries), len(class_names)), np.float32)
    vectors[[row for row, _ in named], labels] = 1.0
    return vectors, class_names


def _names(entry: _Entry, separator: str | None) -> list[Any]:
    """Return the names of the classes of an entry. A name is empty if the entry has no label."""
    if separator is None:
        return [entry.text("label")]
    found = entry.fields.get("labels", "")
    return found if isinstance(found, list) else list(filter(None, map(str.strip, found.split(separator))))
