"""Images without labels: all images in a folder and below it."""

import numpy as np
import tensorflow as tf

from keras_vit.data import holdout, splits
from keras_vit.data.readers.folder import EXTENSIONS
from keras_vit.data.readers.walk import Tree
from keras_vit.data.sources import FileSource, select


def sizes(location: str, test_fraction: float = 0.2) -> dict[str, int]:
    """Return the number of images of each split."""
    return {key: len(value) for key, value in _read(location, test_fraction)[1].items()}


def open_source(location: str, split: str = "train", test_fraction: float = 0.2) -> FileSource:
    """Open the images of a folder, for tasks that read no labels: the source has no classes, and every label is 0."""
    name = f"images:{location}"
    paths, indices = _read(location, test_fraction)
    chosen = select(splits.parse(split, {key: len(value) for key, value in indices.items()}, name), indices)
    return FileSource(name, split, [paths[index] for index in chosen], np.zeros(len(chosen), np.int32), ())


def _read(location: str, test_fraction: float) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the paths of all images, and their indices by split."""
    tree = Tree(location)
    if not tf.io.gfile.isdir(tree.root):
        raise FileNotFoundError(f"There is no folder {location!r}.")
    (files,) = tree.below([("all", tree.root)])
    keys = sorted(path for path in files if path.lower().endswith(EXTENSIONS))
    if not keys:
        raise ValueError(f"Images ({', '.join(EXTENSIONS)}) are expected in {location} or below it. There is none.")
    indices = holdout.split_indices(keys, np.zeros(len(keys), np.int32), test_fraction)
    return [f"{tree.root}/{key}" for key in keys], indices
