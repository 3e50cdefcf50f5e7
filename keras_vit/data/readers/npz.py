"""Arrays of images and labels in a NumPy file, under the names that such files use."""

import re
import zipfile

import numpy as np
import tensorflow as tf

from keras_vit.data import holdout, splits
from keras_vit.data.sources import ArraySource, check_labels, select, warn_of_missing_classes

IMAGES = ("images", "image", "x")
LABELS = ("labels", "label", "y")
SPLITS = {"train": "train", "test": "test", "val": "validation", "valid": "validation", "validation": "validation"}


def sizes(location: str, test_fraction: float = 0.2, class_names=None) -> dict[str, int]:
    """Number of examples of each split."""
    return {key: len(value) for key, value in _read(location, test_fraction)[2].items()}


def open_source(
    location: str, split: str = "train", test_fraction: float = 0.2, class_names: list[str] | None = None
) -> ArraySource:
    """Opens an `.npz` file.

    Args:
        location: path of a file with `x_train, y_train, x_test, y_test` as Keras writes them, `train_images,
            train_labels, ...`, or one pair `images, labels`. Images are uint8 [n, H, W] or [n, H, W, C]; labels are
            integers [n] or [n, 1], or zeros and ones [n, classes] of which several may be one.
        split: as TensorFlow Datasets writes it.
        test_fraction: share that becomes the test split when the file has only one pair.
        class_names: names of the classes; from the array `class_names` in the file when `None`, else numbers.
    """
    name = f"npz:{location}"
    images, labels, indices, file_names = _read(location, test_fraction)
    class_names = class_names or file_names
    if class_names is None:
        count = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1
        class_names = [str(label) for label in range(count)]
    labels = check_labels(labels, len(class_names), lambda index: f"image {index} of {name}")
    chosen = select(splits.parse(split, {key: len(value) for key, value in indices.items()}, name), indices)
    warn_of_missing_classes(name, split, labels[chosen], labels)
    return ArraySource(name, split, images[chosen], labels[chosen], class_names, multi_label=labels.ndim == 2)


def _read(location: str, test_fraction: float):
    arrays = _load(location)
    pairs = _pairs(location, arrays)
    images = [_images(location, key, arrays[key]) for key, _ in pairs.values()]
    labels = [
        _labels(location, key, arrays[key], len(image)) for (_, key), image in zip(pairs.values(), images, strict=True)
    ]
    if len({image.shape[1:] for image in images}) > 1 or len({label.shape[1:] for label in labels}) > 1:
        shapes = {key: arrays[key].shape for pair in pairs.values() for key in pair}
        raise ValueError(f"All splits of {location} must have images and labels of one shape. Received: {shapes}.")
    images, labels = np.concatenate(images), np.concatenate(labels)
    if list(pairs) == ["all"]:
        indices = holdout.split_indices([str(i) for i in range(len(labels))], labels, test_fraction, shuffle=False)
    else:
        stops = np.cumsum([len(arrays[key]) for key, _ in pairs.values()])
        indices = {
            key: np.arange(stop - len(arrays[pair[0]]), stop)
            for (key, pair), stop in zip(pairs.items(), stops, strict=True)
        }
    names = arrays.get("class_names")
    return images, labels, indices, None if names is None else [str(name) for name in names]


def _load(location: str) -> dict[str, np.ndarray]:
    if not tf.io.gfile.exists(location):
        raise FileNotFoundError(f"There is no file {location!r}.")
    try:
        with tf.io.gfile.GFile(location, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except (ValueError, zipfile.BadZipFile, AttributeError, EOFError, tf.errors.OpError) as error:
        raise ValueError(
            f"{location} cannot be read as an .npz file of plain arrays ({error}). Write it with "
            "np.savez(path, images=images, labels=labels); arrays of objects are not read."
        ) from error


def _pairs(location: str, arrays: dict[str, np.ndarray]) -> dict[str, tuple[str, str]]:
    """{split: (name of the images, name of the labels)}."""
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


def _images(location: str, key: str, images: np.ndarray) -> np.ndarray:
    hint = ""
    if images.dtype.kind == "f":
        hint = " Multiply by 255 if the values are in 0..1, and write with .round().astype('uint8')."
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[-1] not in (1, 3)):
        raise ValueError(
            f"Images must be uint8 [n, H, W] or [n, H, W, C] with 1 or 3 channels, values 0..255. Received: {key!r} of "
            f"{location} with {images.dtype} {list(images.shape)}.{hint}"
        )
    if 0 in images.shape:
        raise ValueError(f"{key!r} of {location} holds no image: its shape is {list(images.shape)}.")
    return images


def _labels(location: str, key: str, labels: np.ndarray, count: int) -> np.ndarray:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim not in (1, 2) or len(labels) != count:
        raise ValueError(
            f"There must be one label an image, {count}. Received: {key!r} of {location}, shape {list(labels.shape)}."
        )
    if labels.ndim == 1 and labels.dtype.kind not in "iu":
        raise ValueError(f"Labels must be integers. Received: {key!r} of {location} with {labels.dtype}.")
    return labels
