"""Lists of image files with their labels, as CSV."""

import csv
import io
import posixpath
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_vit import _checks, _io
from keras_vit.data import holdout
from keras_vit.data.readers.data_set import DataSet, of_files
from keras_vit.data.sources import check_labels, classes_up_to

_MAX_DIGITS = 18  # of a class number
_MAX_VALUES = 2**32  # of labels as vectors


class _Entry(NamedTuple):
    line: int
    path: str
    labels: list[str]
    split: str  # empty if the list names none


def read(
    location: str,
    root: str | None = None,
    test_fraction: float = 0.2,
    separator: str = ";",
    class_names: list[str] | None = None,
) -> DataSet:
    """Return the images of a list in CSV, whose first line names the columns; see `docs/data.md`."""
    if not tf.io.gfile.exists(location) or tf.io.gfile.isdir(location):
        raise FileNotFoundError(f"There is no file {location!r}.")
    with tf.io.gfile.GFile(location, "rb") as file:
        content = file.read()
    entries, multi_label = _entries(location, _io.decode_text(content, location), separator)
    if not entries:
        raise ValueError(f"{location} lists no image.")
    labels, class_names = _labels(location, entries, class_names, multi_label)
    keys = [entry.path for entry in entries]
    root = posixpath.dirname(location) if root is None else root
    named_splits = [entry.split for entry in entries]
    if any(named_splits):
        if "" in named_splits:
            line = entries[named_splits.index("")].line
            raise ValueError(f"Every entry of {location} must name its split, or none. Line {line} does not.")
        order = holdout.split_indices(keys, labels, 0.0)["all"]
        indices = {
            split: order[np.array([named_splits[i] == split for i in order])] for split in dict.fromkeys(named_splits)
        }
    else:
        indices = holdout.split_indices(keys, labels, test_fraction)
    paths = [posixpath.join(root, key) for key in keys]
    return of_files(f"manifest:{location}", paths, labels, class_names, indices)


def _entries(location: str, text: str, separator: str) -> tuple[list[_Entry], bool]:
    """Return the entries of a list, and whether they have any number of labels, in the column `labels`."""
    reader = csv.DictReader(io.StringIO(text))
    columns = reader.fieldnames = [column.strip() for column in reader.fieldnames or ()]
    multi_label, entries = "labels" in columns, []
    if "path" not in columns or not (multi_label or "label" in columns):
        raise ValueError(
            f"The first line of {location} must name the columns 'path' and 'label' (or 'labels'), perhaps 'split'. "
            f"Received: {', '.join(columns) or 'an empty file'}."
        )
    try:
        for row in reader:
            fields = {key: (value or "").strip() for key, value in row.items() if key}
            label = _checks.composed(fields["labels" if multi_label else "label"])
            labels = [part.strip() for part in label.split(separator) if part.strip()] if multi_label else [label]
            if not fields["path"] or labels == [""] or any(row.get(None, ())):  # None: of fields without a column
                raise ValueError(
                    f"Line {reader.line_num} of {location} must have a path and a label, and not more fields than the "
                    f'first line (write "a, b" for a text with a comma). Received: {row}.'
                )
            entries.append(_Entry(reader.line_num, fields["path"], labels, fields.get("split", "")))
    except csv.Error as error:  # a field of more than 128 KiB, or a zero byte
        raise ValueError(f"Line {reader.line_num + 1} of {location} cannot be read: {error}.") from error
    return entries, multi_label


def _labels(
    location: str, entries: list[_Entry], class_names: list[str] | None, multi_label: bool
) -> tuple[np.ndarray, list[str]]:
    """Return the labels of all entries and the names of the classes, which are numbers if all labels are."""
    named = [(row, name) for row, entry in enumerate(entries) for name in entry.labels]
    lines = [f"line {entries[row].line} of {location}" for row, _ in named]
    found = sorted({name for _, name in named})
    numbers = {name: int(name[: _MAX_DIGITS + 1]) for name in found if name.isdecimal()}
    if class_names is None and found and len(numbers) == len(found):
        largest = max(range(len(named)), key=lambda place: numbers[named[place][1]])
        class_names = classes_up_to(numbers[named[largest][1]], lines[largest])
    class_names = found if class_names is None else list(map(_checks.composed, class_names))
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
