"""Images for pre-training and transfer: two files with different classes of the same data set."""

import os
from typing import Any, cast

import numpy as np

from benchmarks.paper.study import Study
from keras_vit import data
from keras_vit.data.sources import ArraySource
from keras_vit.util import file_io

HELD_BACK = (2, 3, 6, 7, 8)  # classes for the transfer; in Fashion-MNIST: pullover, dress, shirt, sneaker, bag
EXAMPLES = 100  # training images per class for the transfer


def prepare(study: Study) -> None:
    """Write the images for pre-training and the images for transfer, which have different classes."""
    opened = {split: cast(ArraySource, data.open_source(study.source, split=split)) for split in ("train", "test")}
    names = opened["train"].class_names
    for path, classes, limit in (
        (path_of(study, "pretraining"), [index for index in range(len(names)) if index not in HELD_BACK], None),
        (path_of(study, "transfer"), list(HELD_BACK), EXAMPLES),
    ):
        if os.path.exists(path):
            continue
        arrays: dict[str, Any] = {"class_names": np.asarray([names[index] for index in classes])}
        for split, source in opened.items():
            labels = source.labels()
            found = [np.flatnonzero(labels == index)[: limit if split == "train" else None] for index in classes]
            chosen = np.sort(np.concatenate(found))
            held_back = len(chosen) // 20 if split == "train" and limit is None else 0
            parts = {"validation": chosen[:held_back], split: chosen[held_back:]} if held_back else {split: chosen}
            for name, indices in parts.items():
                arrays[f"x_{name}"] = source.images[indices, ..., 0]
                arrays[f"y_{name}"] = np.searchsorted(classes, labels[indices])
        with file_io.atomic_file(path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, **arrays)


def path_of(study: Study, name: str) -> str:
    """Return the path of the images for `"pretraining"` or `"transfer"`."""
    return os.path.join(study.workdir, "subset_size", f"{name}.npz")
