"""Data sets before the choice of a split: the result of every reader."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from keras_vit.data import splits
from keras_vit.data.sources import ArraySource, FileSource, Source


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set. `sizes` returns the number of examples of each split, and `open` opens a split."""

    sizes: Callable[[], dict[str, int]]
    open: Callable[[str], Source]


def of_files(
    name: str,
    paths: Sequence[Any],
    labels: np.ndarray,
    names: Sequence[str],
    indices: Mapping[str, np.ndarray],
    aliases: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
    label_kind: str = "",
    source: Callable[..., FileSource] = FileSource,
) -> DataSet:
    """Return a data set with one file per image.

    `names` are the names of the classes or values. `indices` has the indices of the examples of each split. `aliases`
    maps additional names of splits to names in `indices`. Each of `notes` is logged once. `source` creates the source
    of a split from the chosen `paths`.
    """
    known = {**indices, **{alias: indices[split] for alias, split in (aliases or {}).items()}}

    def open_split(split: str) -> FileSource:
        for note in notes:
            _log_once(f"{name}: {note}")
        chosen = _select(name, split, known)
        opened = source(name, split, [paths[index] for index in chosen], labels[chosen], names, label_kind)
        opened.notes = notes
        return opened

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

    def open_split(split: str) -> ArraySource:
        chosen = _select(name, split, indices)
        _warn_of_missing_classes(name, split, labels[chosen], labels)
        images, first = np.empty(0, np.uint8), 0
        for length, read in arrays:
            rows = chosen - first
            inside = (rows >= 0) & (rows < length)
            if inside.any():
                array = read()
                images = images if images.size else np.empty((len(chosen), *array.shape[1:]), np.uint8)
                images[inside] = array[rows[inside]]
            first += length
        return ArraySource(name, split, images, labels[chosen], names, label_kind)

    return DataSet(lambda: _sizes(indices), open_split)


def in_turn(lengths: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return the indices of consecutive splits with the given lengths."""
    stops = np.cumsum(list(lengths.values()))
    return {split: np.arange(stop - lengths[split], stop) for split, stop in zip(lengths, stops, strict=True)}


def _sizes(indices: Mapping[str, np.ndarray]) -> dict[str, int]:
    return {split: len(chosen) for split, chosen in indices.items()}


def _select(name: str, split: str, indices: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the indices of the examples in a split such as `"train[:80%]"`."""
    parts = splits.parse(split, _sizes(indices), name)
    return np.concatenate([indices[part.name][part.start : part.stop] for part in parts])


@functools.lru_cache(maxsize=256)
def _log_once(text: str) -> None:
    """Log a warning once, however often the data are opened."""
    logging.warning("%s", text)


def _warn_of_missing_classes(name: str, split: str, labels: np.ndarray, whole: np.ndarray) -> None:
    """Log a warning if a slice lacks classes, as in a file sorted by class."""
    missing = np.setdiff1d(whole, labels) if labels.ndim == 1 else ()
    if len(missing):
        logging.warning(
            "%s: the split %r has no examples of %d of the %d classes. Are the examples sorted by class? "
            "A slice takes images in the order of the file.",
            name,
            split,
            len(missing),
            len(np.unique(whole)),
        )
