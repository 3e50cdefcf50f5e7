"""Lists of image files with their labels, as CSV or JSON lines."""

import csv
import io
import json
import posixpath

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
    entries = _json_lines(location, text) if is_json else _csv(location, text, separator)
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


def _csv(location: str, text: str, separator: str) -> list[tuple]:
    """Return (line, path, label or list of labels, split or None) of each entry."""
    reader = csv.DictReader(io.StringIO(text))
    columns = [column.strip() for column in reader.fieldnames or ()]
    reader.fieldnames = columns
    if "path" not in columns or not {"label", "labels"} & set(columns):
        raise ValueError(
            f"The first line of {location} must name the columns 'path' and 'label' (or 'labels'), perhaps 'split'. "
            f"Received: {', '.join(columns) or 'an empty file'}."
        )
    entries = []
    for row in _rows(location, reader):
        path, split = (row["path"] or "").strip(), (row.get("split") or "").strip() or None
        label: str | list[str]
        if "labels" in columns:
            label = [part.strip() for part in (row["labels"] or "").split(separator) if part.strip()]
        else:
            label = (row["label"] or "").strip()
        if not path or label == "":
            raise ValueError(f"Line {reader.line_num} of {location} must have a path and a label. Received: {row}.")
        entries.append((reader.line_num, path, label, split))
    return entries


def _rows(location: str, reader: csv.DictReader):
    try:
        yield from reader
    except csv.Error as error:  # a field of more than 128 KiB, or a zero byte
        raise ValueError(f"Line {reader.line_num + 1} of {location} cannot be read: {error}.") from error


def _json_lines(location: str, text: str) -> list[tuple]:
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            path = entry["path"]
            label = entry["labels"] if "labels" in entry else entry["label"]
            split = entry.get("split")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f'Line {number} of {location} must be an object such as {{"path": "a.jpg", "label": "cat"}}. '
                f"Received: {line[:100]!r} ({type(error).__name__}: {error})."
            ) from error
        if not isinstance(path, str) or not path or isinstance(label, (dict, float)) or label is None:
            raise ValueError(f"Line {number} of {location} must have a path and a label. Received: {line[:100]!r}.")
        if split is not None and not isinstance(split, str):
            raise ValueError(f"Line {number} of {location}: `split` must be a name. Received: {str(split)[:100]!r}.")
        label = [str(part) for part in label] if isinstance(label, list) else str(label)
        entries.append((number, path, label, split))
    return entries


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
        class_names = classes_up_to(numbers[named[largest][1]], len(entries), lines[largest])
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
