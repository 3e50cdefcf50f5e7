"""Arrays of images and labels in a NumPy file (`.npz`), under common names.

The 1,797 handwritten digits in this package are such a file. `assets/README.md` states their source.
"""

import contextlib
import functools
import math
import pathlib
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_vit.data import errors, masks, splits
from keras_vit.data.labels import MAX_CLASSES, check_labels, check_values, classes_up_to, value_names
from keras_vit.data.readers.data_set import DataSet, in_turn, of_arrays
from keras_vit.data.sources import check_expansion
from keras_vit.data.splits import NAMES

IMAGES = ("images", "image", "x")
LABELS = ("labels", "label", "y", "masks", "mask")
DIGITS = pathlib.Path(__file__).parent.parent / "assets" / "digits.npz"

_UNREADABLE = (
    *(ValueError, EOFError, KeyError, RuntimeError, NotImplementedError, TypeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, tf.errors.OpError),
)


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype


def read(
    location: str,
    test_fraction: float = 0.2,
    class_names: list[str] | None = None,
    values: str | Sequence[str] | None = None,
) -> DataSet:
    """Return an `.npz` file: `x_train, y_train, x_test, y_test`, `train_images, ...`, or one pair `images, labels`.

    Labels are integers [n] or [n, 1], or zeros and ones [n, classes] with any number of ones per row. Masks are
    integers [n, H, W]. With the option `values` (names of the values), labels are numbers [n] or [n, k].
    """
    name = f"npz:{location}"
    headers = _headers(location)
    pairs = _pairs(location, headers)
    for images_key, labels_key in pairs.values():
        pair = f"{images_key!r} and {labels_key!r} of {location}"
        _check(pair, headers[images_key], headers[labels_key], numeric=values is not None)
    shapes = {key: headers[key].shape for pair in pairs.values() for key in pair}
    found = [_read(location, key) for _, key in pairs.values()]
    found = [part[:, 0] if part.shape[1:] == (1,) else part for part in found]
    if len({(shapes[key][1:], part.shape[1:]) for (key, _), part in zip(pairs.values(), found, strict=True)}) > 1:
        raise ValueError(f"All splits of {location} must have images and labels of the same shape. Received: {shapes}.")
    labels = np.concatenate(found)
    origin = lambda index: f"image {index} of {name}"  # noqa: E731
    if values is not None:
        names, kind = list(value_names(values)), "values"
        labels = check_values(labels, names, origin)
    else:
        names = class_names or _class_names(location, headers) or _numbered_classes(name, labels)
        kind = "mask" if labels.ndim == 3 else ""
        labels = _checked_masks(name, labels, names) if kind else check_labels(labels, len(names), origin)
    if list(pairs) == ["all"]:
        keys = [str(i) for i in range(len(labels))]
        indices = splits.split_indices(keys, labels, test_fraction, shuffle=False)
    else:
        indices = in_turn({split: len(part) for split, part in zip(pairs, found, strict=True)})
    images = [(shapes[key][0], functools.partial(_read, location, key)) for key, _ in pairs.values()]
    return of_arrays(name, images, labels, names, indices, kind)


def load_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images, uint8 `[1797, 8, 8]`; labels, int32 `[1797]`; and whether each is a test image, bool `[1797]`."""
    with np.load(DIGITS, allow_pickle=False) as file:
        # The published values are amounts of ink from 0 to 16.
        images = np.round(file["images"] * (255 / 16)).astype(np.uint8)
        return images, file["labels"].astype(np.int32), file["is_test"]


def read_digits(location: str = "") -> DataSet:
    """Return the digits: "train" (1,437 examples) and "test" (360)."""
    if location:
        raise ValueError(f"'digits' takes no path. Received: 'digits:{location}'.")
    images, labels, is_test = load_digits()
    indices = {"train": np.flatnonzero(~is_test), "test": np.flatnonzero(is_test)}
    return of_arrays("digits", [(len(images), lambda: images)], labels, list(map(str, range(10))), indices)


def arrays(location: str) -> dict[str, np.ndarray]:
    """Return all arrays of a file by name. Raises a ValueError if the headers do not match the size of the file."""
    return {name: _read(location, name) for name in _headers(location)}


def _headers(location: str) -> dict[str, _Header]:
    """Return shape and type of each array, and check that they match the size of the file.

    `numpy.load` trusts the header of an array and the uncompressed size that a compressed file states.
    """
    if not tf.io.gfile.exists(location):
        raise FileNotFoundError(f"There is no file {location!r}.")
    found = {}
    with _archive(location) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                reader = np.lib.format.read_array_header_1_0
                shape, _, dtype = (reader if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)
                expected = file.tell() + math.prod(shape) * dtype.itemsize
            name, size = member.filename.removesuffix(".npy"), member.file_size
            if dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0 or expected != size:
                raise ValueError(f"{name}.npy has {size:,} bytes, but its header states {dtype} {list(shape)}")
            check_expansion(f"{name}.npy of {location}", member.compress_size, size)
            found[name] = _Header(shape, dtype)
    return found


def _read(location: str, key: str) -> np.ndarray:
    with _archive(location) as archive, archive.open(f"{key}.npy") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


@contextlib.contextmanager
def _archive(location: str) -> Iterator[zipfile.ZipFile]:
    try:
        with tf.io.gfile.GFile(location, "rb") as raw, zipfile.ZipFile(raw) as archive:
            yield archive
    except _UNREADABLE as error:
        raise ValueError(
            f"{location} cannot be read as an .npz file of plain arrays ({error}). Write it with "
            "np.savez(path, images=images, labels=labels); arrays of objects are not read."
        ) from error


def _pairs(location: str, arrays: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the names of the arrays of images and labels by split."""
    found: dict[str, dict[str, str]] = {}
    for key in arrays:
        words = re.split(r"[_\-.]", key.lower())
        kind = "images" if set(words) & set(IMAGES) else "labels" if set(words) & set(LABELS) else None
        if kind:
            split = next((NAMES[word] for word in words if word in NAMES), "all")
            found.setdefault(split, {})[kind] = key
    pairs = {split: (pair["images"], pair["labels"]) for split, pair in found.items() if len(pair) == 2}
    if not pairs:
        raise ValueError(
            f"{location} has no pair of images and labels. Expected: 'images' and 'labels', or 'x_train', 'y_train', "
            f"'x_test', 'y_test'. Received: {sorted(arrays)}."
        )
    return pairs if len(pairs) == 1 or "all" not in pairs else {k: v for k, v in pairs.items() if k != "all"}


def _check(pair: str, images: _Header, labels: _Header, numeric: bool) -> None:
    """Raise a ValueError if images or labels have a wrong shape or type."""
    shape, columns = images.shape, labels.shape[1:]
    received = f"Received: {pair} with {images.dtype} {list(shape)} and {labels.dtype} {list(labels.shape)}."
    is_image = len(shape) == 3 or (len(shape) == 4 and shape[-1] in (1, 3))
    if images.dtype != np.uint8 or not is_image or 0 in shape:
        hint = " Multiply by 255 if the values are in 0..1, and write with .round().astype('uint8')."
        raise ValueError(
            "Images must be non-empty uint8 [n, H, W] or [n, H, W, C] with 1 or 3 channels, values in [0, 255]. "
            f"{received}{hint if images.dtype.kind == 'f' else ''}"
        )
    are_masks = len(labels.shape) == 3 and labels.shape == shape[:3]
    if len(labels.shape) not in (1, 2) and not are_masks or labels.shape[0] != shape[0]:
        raise ValueError(f"There must be one label per image, {shape[0]}, or one mask of the same size. {received}")
    if not are_masks and not 1 <= math.prod(columns) <= MAX_CLASSES:
        raise ValueError(f"Labels must have one column per class, at most {MAX_CLASSES:,}. {received}")
    # One-hot labels are often floats.
    if labels.dtype.kind not in ("biu" if (are_masks or columns in ((), (1,))) and not numeric else "biuf"):
        raise ValueError(f"Labels must be integers. For regression, name the columns with `values=`. {received}")


def _class_names(location: str, headers: dict[str, _Header]) -> list[str] | None:
    """Return the array `class_names`, or None if it does not exist."""
    if "class_names" not in headers:
        return None
    shape, dtype = headers["class_names"]
    if len(shape) != 1 or shape[0] > MAX_CLASSES or dtype.kind not in "biuU":
        raise ValueError(
            f"'class_names' must be a vector of at most {MAX_CLASSES:,} texts. "
            f"Received: {dtype} {list(shape)} in {location}."
        )
    return [str(name) for name in _read(location, "class_names")]


def _checked_masks(name: str, labels: np.ndarray, names: Sequence[str]) -> np.ndarray:
    if not 0 <= labels.min() <= labels.max() <= masks.MAX_CLASSES:
        raise ValueError(f"Indices in masks are 0..65535. Received: {labels.min()}..{labels.max()} in {name}.")
    try:
        return masks.to_classes(tf.constant(labels, tf.int32), len(names), origin=name).numpy()
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(errors.describe(error)) from error


def _numbered_classes(name: str, labels: np.ndarray) -> list[str]:
    if labels.ndim == 3:
        found = labels[(labels != masks.IGNORED) & (labels != masks.MAX_CLASSES)]
        return classes_up_to(int(found.max(initial=0)), name)
    if labels.ndim == 2:
        return [str(number) for number in range(labels.shape[1])]
    largest = int(labels.argmax())
    return classes_up_to(int(labels[largest]), f"image {largest} of {name}")
