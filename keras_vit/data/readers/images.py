"""Images without labels: all images in a folder and below it."""

import numpy as np
import tensorflow as tf

from keras_vit.data import holdout
from keras_vit.data.readers.data_set import DataSet, of_files
from keras_vit.data.readers.folder import EXTENSIONS
from keras_vit.data.readers.walk import Tree


def read(location: str, test_fraction: float = 0.2) -> DataSet:
    """Return the images of a folder, for tasks that read no labels: there are no classes, and every label is 0."""
    tree = Tree(location)
    if not tf.io.gfile.isdir(tree.root):
        raise FileNotFoundError(f"There is no folder {location!r}.")
    keys = sorted(path for path in tree.below(tree.root) if path.lower().endswith(EXTENSIONS))
    if not keys:
        raise ValueError(f"Images ({', '.join(EXTENSIONS)}) are expected in {location} or below it. There is none.")
    labels = np.zeros(len(keys), np.int32)
    indices = holdout.split_indices(keys, labels, test_fraction)
    return of_files(f"images:{location}", [f"{tree.root}/{key}" for key in keys], labels, (), indices)
