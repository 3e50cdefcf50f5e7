"""Arrays of images and labels in a NumPy file, under the names that such files use."""

import contextlib
import functools
import math
import re
import zipfile
import zlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from keras_vit.data import holdout
from keras_vit.data.readers.data_set import DataSet, in_turn, of_arrays
from keras_vit.data.sources import MAX_CLASSES, check_expansion, check_labels, classes_up_to

IMAGES = ("images", "image", "x")
LABELS = ("labels", "label", "y")
SPLITS = {"train": "train", "test": "test", "val": "validation", "valid": "validation", "validation": "validation"}

_UNREADABLE = (
    *(ValueError, EOFError, KeyError, RuntimeError, NotImplementedError, TypeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, tf.errors.OpError),
)


def read(location: str, test_fraction: float = 0.2, class_names: list[str] | None = None) -> DataSet:
    """Return an `.npz` file: `x_train, y_train, x_test, y_test`, `train_images, ...`, or one pair `images, labels`.

    Labels are integers [n] or [n, 1], or zeros and ones [n, classes] with any number of ones.
    """
    name = f"npz:{location}"
    arrays = _Arrays(location)
    pairs = _pairs(location, arrays.shapes)
    found = _labels(location, arrays, pairs)
    labels = np.concatenate(found)
    class_names = class_names or arrays.class_names() or _numbered_classes(name, labels)
    labels = check_labels(labels, len(class_names), lambda index: f"image {index} of {name}")
    if list(pairs) == ["all"]:
        keys = [str(i) for i in range(len(labels))]
        indices = holdout.split_indices(keys, labels, test_fraction, shuffle=False)
    else:
        indices = in_turn({split: len(part) for split, part in zip(pairs, found, strict=True)})
    images = [(arrays.shapes[key][0], functools.partial(arrays.read, key)) for key, _ in pairs.values()]
    return of_arrays(name, images, labels, class_names, indices)


def _numbered_classes(name: str, labels: np.ndarray) -> list[str]:
    if labels.ndim == 2:
        return [str(number) for number in range(labels.shape[1])]
    largest = int(labels.argmax())
    return classes_up_to(int(labels[largest]), len(labels), f"image {largest} of {name}")


def _labels(location: str, arrays: "_Arrays", pairs: dict[str, tuple[str, str]]) -> list[np.ndarray]:
    """Return the labels of each pair; its images and labels have been checked."""
    shapes = arrays.shapes
    for images_key, _ in pairs.values():
        _check_images(location, images_key, shapes[images_key], arrays.dtypes[images_key])
    found = []
    for images_key, key in pairs.values():
        _check_labels(location, key, shapes[key], arrays.dtypes[key], shapes[images_key][0])
        labels = arrays.read(key)
        found.append(labels[:, 0] if labels.shape[1:] == (1,) else labels)
    if len({shapes[key][1:] for key, _ in pairs.values()}) > 1 or len({label.shape[1:] for label in found}) > 1:
        shown = {key: shapes[key] for pair in pairs.values() for key in pair}
        raise ValueError(f"All splits of {location} must have images and labels of one shape. Received: {shown}.")
    return found


class _Arrays:
    """The arrays of an `.npz` file, whose sizes are checked against the file before memory is taken.

    `numpy.load` believes the header of an array and the size that a compressed file tells.
    """

    def __init__(self, location: str):
        if not tf.io.gfile.exists(location):
            raise FileNotFoundError(f"There is no file {location!r}.")
        self.location = location
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, np.dtype] = {}

        with self._archive() as archive:
            for member in archive.infolist():
                if member.filename.endswith(".npy"):
                    self._look_at(archive, member)

    def _look_at(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
        with archive.open(member) as file:
            shape, dtype = _header(file)
            expected = file.tell() + math.prod(shape) * dtype.itemsize
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds objects")
        if not dtype.itemsize or min(shape, default=0) < 0:
            raise ValueError(f"{member.filename} has {dtype} values of no bytes, or a negative shape, {shape}")
        if expected != member.file_size:
            raise ValueError(f"{member.filename} has {member.file_size:,} bytes, and its header tells of {expected:,}")
        check_expansion(f"{member.filename} of {self.location}", member.compress_size, member.file_size)
        key = member.filename.removesuffix(".npy")
        self.shapes[key], self.dtypes[key] = shape, dtype

    def read(self, key: str) -> np.ndarray:
        """Read an array."""
        with self._archive() as archive, archive.open(f"{key}.npy") as file:
            return np.lib.format.read_array(file, allow_pickle=False)

    def class_names(self) -> list[str] | None:
        """The array `class_names`, if there is one."""
        key = "class_names"
        if key not in self.shapes:
            return None
        shape, dtype = self.shapes[key], self.dtypes[key]
        if len(shape) != 1 or shape[0] > MAX_CLASSES or dtype.kind not in "biuU":
            raise ValueError(
                f"{key!r} must be a vector of at most {MAX_CLASSES:,} texts. "
                f"Received: {dtype} {list(shape)} in {self.location}."
            )
        return [str(name) for name in self.read(key)]

    @contextlib.contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        try:
            with tf.io.gfile.GFile(self.location, "rb") as raw, zipfile.ZipFile(raw) as archive:
                yield archive
        except _UNREADABLE as error:
            raise ValueError(
                f"{self.location} cannot be read as an .npz file of plain arrays ({error}). Write it with "
                "np.savez(path, images=images, labels=labels); arrays of objects are not read."
            ) from error


def _header(file) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _pairs(location: str, arrays: dict[str, tuple[int, ...]]) -> dict[str, tuple[str, str]]:
    """Return the names of images and labels by split."""
    found: dict[str, dict[str, str]] = {}
    for key in arrays:
        words = re.split(r"[_\-.]", key.lower())
        kind = "images" if set(words) & set(IMAGES) else "labels" if set(words) & set(LABELS) else None
        if kind:
            split = next((SPLITS[word] for word in words if word in SPLITS), "all")
            found.setdefault(split, {})[kind] = key
    pairs = {split: (pair["images"], pair["labels"]) for split, pair in found.items() if len(pair) == 2}
    if not pairs:
        raise ValueError(
            f"{location} holds no pair of images and labels. Expected: 'images' and 'labels', or 'x_train', 'y_train', "
            f"'x_test', 'y_test'. Received: {sorted(arrays)}."
        )
    return pairs if len(pairs) == 1 or "all" not in pairs else {k: v for k, v in pairs.items() if k != "all"}


def _check_images(location: str, key: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    hint = ""
    if dtype.kind == "f":
        hint = " Multiply by 255 if the values are in 0..1, and write with .round().astype('uint8')."
    if dtype != np.uint8 or len(shape) not in (3, 4) or (len(shape) == 4 and shape[-1] not in (1, 3)):
        raise ValueError(
            f"Images must be uint8 [n, H, W] or [n, H, W, C] with 1 or 3 channels, values 0..255. Received: {key!r} of "
            f"{location} with {dtype} {list(shape)}.{hint}"
        )
    if 0 in shape:
        raise ValueError(f"{key!r} of {location} holds no image: its shape is {list(shape)}.")


def _check_labels(location: str, key: str, shape: tuple[int, ...], dtype: np.dtype, count: int) -> None:
    received = f"Received: {key!r} of {location} with {dtype} {list(shape)}."
    if len(shape) not in (1, 2) or shape[0] != count:
        raise ValueError(f"There must be one label per image, {count}. {received}")
    if not 1 <= math.prod(shape[1:]) <= MAX_CLASSES:
        raise ValueError(f"Labels must have one column per class, at most {MAX_CLASSES:,}. {received}")
    if dtype.kind not in ("biu" if shape[1:] in ((), (1,)) else "biuf"):  # one-hot labels are often floats
        raise ValueError(f"Labels must be integers. {received}")
