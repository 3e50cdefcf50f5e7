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


def _labels(location: str, entries: list[tuple], class_names, multi_label: bool):
    listed = [label if isinstance(label, list) else [label] for _, _, label, _ in entries]
    found = sorted({name for names in listed for name in names})
    if class_names is None:
        if all(name.isdecimal() for name in found):
            class_names = _numbered_classes(location, entries, listed)
        else:
            class_names = found
    if not class_names:
        raise ValueError(f"No entry of {location} has a label.")
    number = {name: i for i, name in enumerate(class_names)}
    if all(name.isdecimal() and len(name) <= _MAX_DIGITS for name in found):
        number = {**{name: int(name) for name in found}, **number}
    for (line, _, _, _), names in zip(entries, listed, strict=True):
        for name in names:
            if name not in number:
                raise ValueError(
                    f"Line {line} of {location} has the label {name[:100]!r}, not one of {list(class_names)}."
                )
    where = [f"line {line} of {location}" for line, _, _, _ in entries]
    if not multi_label:
        numbers = np.array([number[names[0]] for names in listed])
        return check_labels(numbers, len(class_names), where.__getitem__), list(class_names)
    if len(entries) * len(class_names) > _MAX_VALUES:
        raise ValueError(
            f"{location} has {len(entries):,} entries with any number of {len(class_names):,} labels, which would take "
            f"{len(entries) * len(class_names) / 2**28:,.0f} GiB."
        )
    labels = np.zeros((len(entries), len(class_names)), np.float32)
    for row, names in enumerate(listed):
        for name in names:
            check_labels(np.array([number[name]]), len(class_names), [where[row]].__getitem__)
            labels[row, number[name]] = 1.0
    return labels, list(class_names)


def _numbered_classes(location: str, entries: list[tuple], listed: list[list[str]]) -> list[str]:
    """Return the classes 0 to the largest number. If that cannot be a class number, the message names its line."""
    numbers = [
        (int(name) if len(name) <= _MAX_DIGITS else 10**_MAX_DIGITS, entry[0])
        for entry, names in zip(entries, listed, strict=True)
        for name in names
    ]
    largest, line = max(numbers, default=(-1, 0), key=lambda pair: pair[0])
    return classes_up_to(largest, len(entries), f"line {line} of {location}")
