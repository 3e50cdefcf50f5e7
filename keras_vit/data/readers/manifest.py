"""Lists of image files with their labels, as CSV or JSON lines."""

import csv
import io
import json
import posixpath
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data import holdout
from keras_vit.data.readers.data_set import DataSet, of_files
from keras_vit.data.sources import check_labels, classes_up_to

_MAX_DIGITS = 18  # of a class number
_MAX_VALUES = 2**32  # of labels as vectors


def read(
    location: str,
    root: str | None = None,
    test_fraction: float = 0.2,
    separator: str = ";",
    class_names: list[str] | None = None,
) -> DataSet:
    """Return the images of a list: `.csv`, whose first line names the columns, or `.jsonl`; see `docs/data.md`."""
    if not tf.io.gfile.exists(location) or tf.io.gfile.isdir(location):
        raise FileNotFoundError(f"There is no file {location!r}.")
    with tf.io.gfile.GFile(location, "rb") as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{location} must be UTF-8. Line {line} holds {content[error.start : error.end]!r}. Save the file as UTF-8."
        ) from error
    is_json = location.lower().endswith((".jsonl", ".json", ".ndjson"))
    rows = _json_lines(text) if is_json else _csv(location, text)
    entries = [_entry(location, line, row, separator) for line, row in rows]
    if not entries:
        raise ValueError(f"{location} lists no image.")
    root = posixpath.dirname(location) if root is None else root
    paths = [posixpath.join(root, path) for _, path, _, _ in entries]
    multi_label = any(isinstance(label, list) for _, _, label, _ in entries)
    labels, class_names = _labels(location, entries, class_names, multi_label)
    named_splits = [split for _, _, _, split in entries]
    keys = [path for _, path, _, _ in entries]
    if any(split is not None for split in named_splits):
        if None in named_splits:
            line = entries[named_splits.index(None)][0]
            raise ValueError(f"Every entry of {location} must name its split, or none. Line {line} does not.")
        order = holdout.split_indices(keys, labels, 0.0)["all"]
        indices = {
            split: order[np.array([named_splits[i] == split for i in order])] for split in dict.fromkeys(named_splits)
        }
    else:
        indices = holdout.split_indices(keys, labels, test_fraction)
    return of_files(f"manifest:{location}", paths, labels, class_names, indices)


def _csv(location: str, text: str) -> Iterator[tuple[int, Any]]:
    """Yield the number of each line and its fields by column."""
    reader = csv.DictReader(io.StringIO(text))
    try:
        for row in reader:
            yield reader.line_num, {str(key).strip(): (value or "").strip() for key, value in row.items() if key}
    except csv.Error as error:  # a field of more than 128 KiB, or a zero byte
        raise ValueError(f"Line {reader.line_num + 1} of {location} cannot be read: {error}.") from error


def _json_lines(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                yield number, line


def _entry(location: str, line: int, row: Any, separator: str) -> tuple[int, str, str | list[str], str | None]:
    """Return line, path, label or list of labels, and split."""
    fields = row if isinstance(row, dict) else {}
    path, label, split = fields.get("path"), fields.get("labels", fields.get("label")), fields.get("split") or None
    if "labels" in fields and isinstance(label, str):
        label = [part.strip() for part in label.split(separator) if part.strip()]
    if not path or label == "" or not isinstance(label, (str, int, list)) or not isinstance(split, (str, type(None))):
        raise ValueError(
            f"Line {line} of {location} must have a path, a label or labels, and perhaps a split. Expected: "
            f'the columns `path` and `label`, or {{"path": "a.jpg", "label": "cat"}}. Received: {str(row)[:100]!r}.'
        )
    return line, str(path), [str(part) for part in label] if isinstance(label, list) else str(label), split


def _labels(
    location: str, entries: list[tuple], class_names: list[str] | None, multi_label: bool
) -> tuple[np.ndarray, list[str]]:
    """Return the labels of all entries and the names of the classes, which are numbers if all labels are."""
    named = [
        (row, name)
        for row, (_, _, label, _) in enumerate(entries)
        for name in (label if isinstance(label, list) else [label])
    ]
    lines = [f"line {entries[row][0]} of {location}" for row, _ in named]
    found = sorted({name for _, name in named})
    numbers = {name: int(name[: _MAX_DIGITS + 1]) for name in found if name.isdecimal()}
    if class_names is None and found and len(numbers) == len(found):
        largest = max(range(len(named)), key=lambda place: numbers[named[place][1]])
        class_names = classes_up_to(numbers[named[largest][1]], lines[largest])
    class_names = found if class_names is None else list(class_names)
    if not class_names:
        raise ValueError(f"No entry of {location} has a label.")
    known = {name: number for number, name in enumerate(class_names)}
    if len(numbers) == len(found):
        known = {**{name: number for name, number in numbers.items() if len(name) <= _MAX_DIGITS}, **known}
    for (_, name), line in zip(named, lines, strict=True):
        if name not in known:
            raise ValueError(f"L{line[1:]} has the label {name[:100]!r}, not one of {class_names}.")
    labels = np.array([known[name] for _, name in named], np.int64)
    labels = check_labels(labels, len(class_names), lines.__getitem__)
    if not multi_label:
        return labels, class_names
    if len(entries) * len(class_names) > _MAX_VALUES:
        raise ValueError(
            f"{location} has {len(entries):,} entries with any number of {len(class_names):,} labels, which would take "
            f"{len(entries) * len(class_names) / 2**28:,.0f} GiB."
        )
    vectors = np.zeros((len(entries), len(class_names)), np.float32)
    vectors[[row for row, _ in named], labels] = 1.0
    return vectors, class_names
