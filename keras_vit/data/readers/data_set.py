"""Data sets before the choice of a split: the result of every reader."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from keras_vit.data import splits
from keras_vit.data.sources import ArraySource, FileSource, Source, StoredSource
from keras_vit.util import checks


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set. `sizes` returns the number of examples of each split, and `open` opens a split."""

    sizes: Callable[[], dict[str, int]]
    open: Callable[[str], Source]


def of_files(
    name: str,
    paths: Sequence[Any] | np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    indices: Mapping[str, np.ndarray],
    notes: tuple[str, ...] = (),
    label_kind: str = "",
    source: Callable[..., StoredSource] = FileSource,
) -> DataSet:
    """Return a data set with one file per image.

    `names` are the names of the classes or values. `indices` has the indices of the examples of each split. Each of
    `notes` is logged once. `source` creates the source of a split from the chosen `paths`.
    """

    def open_split(split: str) -> Source:
        parts = splits.parse(split, _sizes(indices), name)
        return of_examples(split, np.concatenate([indices[part.name][part.start : part.stop] for part in parts]))

    def of_examples(split: str, chosen: np.ndarray) -> Source:
        own = paths[chosen] if isinstance(paths, np.ndarray) else [paths[index] for index in chosen]
        opened = source(name, split, own, labels[chosen], names, label_kind)
        opened.subset = lambda split, kept: of_examples(split, chosen[kept])
        by_split = {key: labels[some] for key, some in {**indices, split: chosen}.items()}
        return noted(opened, (*notes, *about_classes(by_split, opened.class_names)))

    return DataSet(lambda: _sizes(indices), open_split)


def of_arrays(
    name: str,
    arrays: Sequence[tuple[int, Callable[[], np.ndarray]]],
    labels: np.ndarray,
    names: Sequence[str],
    indices: Mapping[str, np.ndarray],
    label_kind: str = "",
) -> DataSet:
    """Return a data set of images in arrays.

    Each array is given by its length and a function that reads it. `labels` and `indices` refer to the concatenation
    of all arrays.
    """

    def source(name: str, split: str, chosen: list[int], *labels_and_names: Any) -> ArraySource:
        images, first = np.empty(0, np.uint8), 0
        for length, read in arrays:
            rows = np.array(chosen) - first
            inside = (rows >= 0) & (rows < length)
            if inside.any():
                array = read()
                images = images if images.size else np.empty((len(chosen), *array.shape[1:]), np.uint8)
                images[inside] = array[rows[inside]]
            first += length
        return ArraySource(name, split, images, *labels_and_names)

    return of_files(name, range(len(labels)), labels, names, indices, (), label_kind, source)


def in_turn(lengths: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return the indices of consecutive splits with the given lengths."""
    stops = np.cumsum(list(lengths.values()))
    return {split: np.arange(stop - lengths[split], stop) for split, stop in zip(lengths, stops, strict=True)}


def _sizes(indices: Mapping[str, np.ndarray]) -> dict[str, int]:
    return {split: len(chosen) for split, chosen in indices.items()}


def noted(source: Source, notes: tuple[str, ...]) -> Source:
    """Log each note about a source once, and return the source with the notes."""
    source.notes = notes
    for note in notes:
        _log_once(f"{source.name}: {note}")
    return source


def about_classes(labels: Mapping[str, np.ndarray], names: Sequence[str]) -> tuple[str, ...]:
    """Return notes about the splits in which classes have no images. `labels` has the labels of each split."""
    notes = []
    for split, own in labels.items():
        if own.dtype == object or not len(names):  # masks in files, or values
            continue
        present: np.ndarray = np.any(own, axis=0) if own.ndim == 2 else np.isin(np.arange(len(names)), own)
        missing = [name for name, is_present in zip(names, present, strict=True) if not is_present]
        if missing and split != "all":
            hint = " Are the examples sorted by class? A slice takes them in order." if "[" in split else ""
            if missing == ["0"] and split == "train":
                hint = " If the labels begin with 1, subtract 1, in lists and tar files with #label_offset=-1."
            notes.append(f"Classes without images in the split {split!r}: {checks.listed(missing)}.{hint}")
    return tuple(notes)


@functools.lru_cache(maxsize=256)
def _log_once(text: str) -> None:
    """Log a warning once, however often the data are opened."""
    logging.warning("%s", text)
