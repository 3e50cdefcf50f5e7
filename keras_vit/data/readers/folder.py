"""Folders of images with one subfolder per class."""

import collections
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from keras_vit.data import holdout, splits
from keras_vit.data.sources import FileSource, select

EXTENSIONS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".jxl", ".jpe", ".jfif")
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}


def sizes(location: str, test_fraction: float = 0.2) -> dict[str, int]:
    """Return the number of examples of each split."""
    return {key: len(value) for key, value in _read(location, test_fraction)[3].items()}


def open_source(location: str, split: str = "train", test_fraction: float = 0.2) -> FileSource:
    """Open a folder of images.

    Args:
        location: `folder` with `folder/class_a/*.jpg, folder/class_b/*.png, ...`, or with such folders in `train`,
            `val` (or `valid`, `validation`) and `test`. Deeper folders belong to the class that they are in.
        split: As TensorFlow Datasets writes it. Without split folders, a hash of the file names divides each class in
            proportion into "train" and "test", and "all" is both.
        test_fraction: Fraction of "test" where there are no split folders.
    """
    name = f"folder:{location}"
    paths, labels, class_names, indices = _read(location, test_fraction)
    chosen = select(splits.parse(split, {key: len(value) for key, value in indices.items()}, name), indices)
    return FileSource(name, split, [paths[i] for i in chosen], labels[chosen], class_names)


def _read(location: str, test_fraction: float):
    location = location.rstrip("/") or "/"
    if not tf.io.gfile.isdir(location):
        raise FileNotFoundError(f"There is no folder {location!r}.")
    folders = _folders(location)
    split_folders = {SPLITS[name.lower()]: name for name in folders if name.lower() in SPLITS}
    # A folder is divided into splits if it has a training folder that holds classes instead of images.
    if "train" in split_folders and _folders(f"{location}/{split_folders['train']}"):
        found = {key: _classes(f"{location}/{folder}") for key, folder in split_folders.items()}
        return _divided(location, found)
    files = _classes(location)
    class_names = sorted(files)
    keys = [f"{class_name}/{file}" for class_name in class_names for file in files[class_name]]
    labels = np.repeat(np.arange(len(class_names), dtype=np.int32), [len(files[name]) for name in class_names])
    return (
        [f"{location}/{key}" for key in keys],
        labels,
        class_names,
        holdout.split_indices(keys, labels, test_fraction),
    )


def _divided(location: str, found: dict[str, dict[str, list[str]]]):
    class_names = sorted(found["train"])
    paths: list[str] = []
    labels: list[np.ndarray] = []
    indices = {}
    for key, files in found.items():
        unknown = sorted(set(files) - set(class_names))
        if unknown:
            raise ValueError(
                f"Every class must have training images. {location} has no training folder for {unknown}, of the "
                f"split {key!r}."
            )
        keys = [(f"{name}/{file}", label) for label, name in enumerate(class_names) for file in files.get(name, ())]
        own = np.array([label for _, label in keys], np.int32)
        order = holdout.split_indices([path for path, _ in keys], own, 0.0)["all"]
        folder = next(name for name in _folders(location) if SPLITS.get(name.lower()) == key)
        indices[key] = len(paths) + order
        paths += [f"{location}/{folder}/{path}" for path, _ in keys]
        labels.append(own)
    return paths, np.concatenate(labels), class_names, indices


def _list(folder: str) -> list[str]:
    """Return the names in a folder.

    Raises:
        ValueError: If a name is not UTF-8.
    """
    try:
        return [name.rstrip("/") for name in tf.io.gfile.listdir(folder)]
    except UnicodeDecodeError as error:
        raise ValueError(f"Names must be UTF-8. Received: {error.object!r} in {folder!r}. Rename the file.") from error


def walk(folder: str, inner: str = "") -> Iterator[str]:
    """Yield the paths of all files in a folder and below it, relative to it."""
    for name in _list(f"{folder}/{inner}"):
        if tf.io.gfile.isdir(f"{folder}/{inner}{name}"):
            yield from walk(folder, f"{inner}{name}/")
        else:
            yield inner + name


def _folders(location: str) -> list[str]:
    return sorted(
        name for name in _list(location) if not name.startswith(".") and tf.io.gfile.isdir(f"{location}/{name}")
    )


def _classes(location: str) -> dict[str, list[str]]:
    """Return the paths of the images of each class, relative to its folder."""
    names = _folders(location)
    if not names:
        example = next(iter(_list(location)), None)
        raise ValueError(
            f"A folder with one subfolder per class is expected, as {location}/cat/1.jpg. Received: a folder without "
            f"subfolders, which holds {f'{example!r} and the like' if example else 'nothing'}."
        )
    files: dict[str, list[str]] = {}
    ignored: collections.Counter[str] = collections.Counter()
    for name in names:
        files[name] = []
        for path in walk(f"{location}/{name}"):
            member = path.rpartition("/")[2]
            if member.lower().endswith(EXTENSIONS) and not member.startswith("."):
                files[name].append(path)
            else:
                ignored[member.rsplit(".", 1)[-1]] += 1
        files[name].sort()
    empty = [name for name in names if not files[name]]
    if empty:
        other = f" Files of other kinds: {dict(ignored.most_common(5))}." if ignored else ""
        raise ValueError(
            f"Every class folder must hold images ({', '.join(EXTENSIONS)}). Empty in {location}: "
            f"{', '.join(empty)}. Add images or remove the folder.{other}"
        )
    return files
