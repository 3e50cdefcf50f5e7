"""Lists of image files with labels, as CSV or as JSON lines."""

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

from keras_vit import _checks, _io
from keras_vit.data import holdout
from keras_vit.data.labels import numbered, value_names
from keras_vit.data.readers import mask_folders
from keras_vit.data.readers.data_set import DataSet, of_files

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
) -> DataSet:
    """Return the images in a list: CSV, with the names of the columns in the first line, or JSON lines.

    `classes` and `label_offset` are for masks, whose paths are in the column `mask`. See `docs/data.md`.
    """
    if not tf.io.gfile.exists(location) or tf.io.gfile.isdir(location):
        raise FileNotFoundError(f"There is no file {location!r}.")
    with tf.io.gfile.GFile(location, "rb") as file:
        text = _io.decode_text(file.read(), location)
    columns, entries = (_json_lines if location.lower().endswith(".jsonl") else _csv)(location, text)
    kind, columns_of_labels = _label_columns(location, columns, values)
    names: Sequence[str] = columns_of_labels
    if not entries:
        raise ValueError(f"{location} lists no images.")
    for entry in entries:
        if not entry.text("path"):
            raise ValueError(f"Line {entry.line} of {location} must have a path. Received: {entry.fields}.")
    root = posixpath.dirname(location) if root is None else root
    if kind == "mask":
        labels, names = _mask_paths(location, entries, root), mask_folders.class_names(classes, root)
    elif kind == "values":
        labels = _values(location, entries, columns_of_labels)
    else:
        labels, names = _class_labels(location, entries, class_names, separator if kind == "classes" else None)
    keys = [entry.text("path") for entry in entries]
    named_splits = [entry.text("split") for entry in entries]
    if any(named_splits):
        if "" in named_splits:
            line = entries[named_splits.index("")].line
            raise ValueError(f"Every entry of {location} must name its split, or none of them. Line {line} does not.")
        order = holdout.split_indices(keys, np.zeros(len(keys)), 0.0)["all"]
        indices = {
            split: order[np.array([named_splits[i] == split for i in order])] for split in dict.fromkeys(named_splits)
        }
    else:
        groups = np.zeros(len(keys)) if kind == "mask" else labels
        indices = holdout.split_indices(keys, groups, test_fraction)
    paths = [posixpath.join(root, key) for key in keys]
    if kind == "mask":
        return mask_folders.of_pairs(f"manifest:{location}", paths, labels, names, label_offset, indices)
    return of_files(f"manifest:{location}", paths, labels, names, indices, label_kind=kind)


def _csv(location: str, text: str) -> tuple[list[str], list[_Entry]]:
    """Return the columns and entries of a list in CSV."""
    reader = csv.DictReader(io.StringIO(text))
    columns = reader.fieldnames = [column.strip() for column in reader.fieldnames or ()]
    entries = []
    try:
        for row in reader:
            if any(row.get(None, ())):  # fields without a column
                raise ValueError(
                    f"Line {reader.line_num} of {location} must have one field per column, not more fields than the "
                    f'first line (write "a, b" for a text with a comma). Received: {row}.'
                )
            entries.append(_Entry(reader.line_num, {key: (value or "").strip() for key, value in row.items() if key}))
    except csv.Error as error:  # a field of more than 128 KiB, or a zero byte
        raise ValueError(f"Line {reader.line_num + 1} of {location} cannot be read: {error}.") from error
    return columns, entries


def _json_lines(location: str, text: str) -> tuple[list[str], list[_Entry]]:
    """Return the keys of the first object and the entries of a list with one JSON object per line."""
    entries = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"Line {number} of {location} is not valid JSON: {error}.") from error
            if not isinstance(row, dict):
                raise ValueError(f"Line {number} of {location} must be a JSON object. Received: {line[:100]}.")
            entries.append(_Entry(number, {key: _as_text(value) for key, value in row.items()}))
    return list(entries[0].fields) if entries else [], entries


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
        raise ValueError(
            f"The first line of {location} must name the columns 'path' and {', '.join(map(repr, names))}{others}, "
            f"and optionally 'split'. Received: {', '.join(columns) or 'an empty file'}."
            f"{_checks.nearest(missing[0], columns)}{advice}"
        )
    return kind, names


def _values(location: str, entries: Sequence[_Entry], names: Sequence[str]) -> np.ndarray:
    """Return the numbers in the columns `names`, float32 `[n, k]`."""
    values = np.empty((len(entries), len(names)), np.float32)
    for row, entry in enumerate(entries):
        for column, name in enumerate(names):
            text = entry.text(name)
            number = float(text) if _NUMBER.fullmatch(text) else math.nan
            if not abs(number) <= _MAX_VALUE:
                raise ValueError(
                    f"Line {entry.line} of {location} must have a finite number in the column {name!r}, such as 1.5. "
                    f"Received: {str(entry.fields.get(name, 'nothing'))[:100]!r}."
                )
            values[row, column] = number
    return values


def _mask_paths(location: str, entries: Sequence[_Entry], root: str) -> np.ndarray:
    """Return the paths in the column `mask`, an array of strings `[n]`."""
    empty = next((entry for entry in entries if not entry.text("mask")), None)
    if empty:
        raise ValueError(f"Line {empty.line} of {location} must have a path in the column 'mask'.")
    return np.array([posixpath.join(root, entry.text("mask")) for entry in entries], object)


def _class_labels(
    location: str, entries: list[_Entry], class_names: list[str] | None, separator: str | None
) -> tuple[np.ndarray, list[str]]:
    """Return the labels of all entries and the names of the classes, which are numbers if all labels are numbers.

    `separator` separates the labels in the column `labels`. If it is None, the column `label` contains one label.
    """
    named = [(row, name) for row, entry in enumerate(entries) for name in _names(location, entry, separator)]
    texts = [name for _, name in named]
    found = sorted(set(texts))
    if class_names is None and separator is None and all(map(_NUMBER.fullmatch, found)):
        fraction = next((name for name in found if not name.lstrip("+-").isdecimal()), None)
        if fraction:
            raise ValueError(
                f"The labels of {location} are numbers with a fraction, such as {fraction}. To predict numbers, give "
                f"values=label, as in 'manifest:{location}#values=label'. Class numbers must be integers from 0."
            )
    origin = lambda place: f"line {entries[named[place][0]].line} of {location}"  # noqa: E731
    labels, class_names = numbered(texts, class_names, location, origin)
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


def _names(location: str, entry: _Entry, separator: str | None) -> list[str]:
    """Return the names of the classes of an entry."""
    if separator is None:
        names = [entry.text("label")]
    else:
        found = entry.fields.get("labels", "")
        names = found if isinstance(found, list) else list(filter(None, map(str.strip, found.split(separator))))
    if not all(name and isinstance(name, str) for name in names):
        raise ValueError(f"Line {entry.line} of {location} must have a path and a label. Received: {entry.fields}.")
    return list(map(_checks.composed, names))
