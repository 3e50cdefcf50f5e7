"""Sizes of data sets, for planning without having them."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from keras_vit.data import splits
from keras_vit.evaluators import vtab


@dataclasses.dataclass(frozen=True)
class Known:
    """Size of a data set.

    Attributes:
        splits: Number of examples of each split.
        classes: Number of classes.
        shape: Height, width and channels of images that are arrays; None of pictures, which `decode` makes arrays.
    """

    splits: Mapping[str, int]
    classes: int
    shape: tuple[int, int, int] | None = None


class Size(NamedTuple):
    """What is known of a source: examples of the split, classes, and the shape of its arrays. None is not known."""

    examples: int | None = None
    classes: int | None = None
    shape: tuple[int, int, int] | None = None


_GREY = (28, 28, 1)
_MNIST = Known({"train": 60_000, "test": 10_000}, 10, _GREY)

# By what their names begin with.
DATASETS = {
    "tfds:cifar10": Known({"train": 50_000, "test": 10_000}, 10),
    "tfds:cifar100": Known({"train": 50_000, "test": 10_000}, 100),
    "tfds:oxford_iiit_pet": Known({"train": 3_680, "test": 3_669}, 37),
    "tfds:oxford_flowers102": Known({"train": 1_020, "validation": 1_020, "test": 6_149}, 102),
    "tfds:imagenet2012": Known({"train": 1_281_167, "validation": 50_000}, 1_000),
    "tfds:imagenet21k": Known({"full": 14_197_122}, 21_843),
    "tfrecord:jft": Known({"train": 303_000_000, "test": 50_000}, 18_291),  # not public
}

# Where the recipes of this package look; another folder may hold anything.
LOCATIONS = {
    "digits": Known({"train": 1_437, "test": 360}, 10),
    "fashion_mnist": _MNIST,
    "idx:/usr/share/datasets/fashion-mnist": _MNIST,
    # What `benchmarks.results` makes of Fashion-MNIST: eight of its classes, and 500 pictures of each of the other two.
    "npz:runs/results/data/eight.npz": Known({"train": 48_000, "test": 8_000}, 8, _GREY),
    "npz:runs/results/data/two.npz": Known({"train": 1_000, "test": 2_000}, 2, _GREY),
}

# Classes of the tasks of VTAB (https://arxiv.org/abs/1910.04867), and examples of the splits to train on.
VTAB = {
    "caltech101": 102,
    "cifar100": 100,
    "dtd": 47,
    "flowers102": 102,
    "pets": 37,
    "sun397": 397,
    "svhn": 10,
    "patch_camelyon": 2,
    "eurosat": 10,
    "resisc45": 45,
    "diabetic_retinopathy": 5,
    "clevr_count": 8,
    "clevr_distance": 6,
    "dmlab": 6,
    "kitti_distance": 4,
    "dsprites_location": 16,
    "dsprites_orientation": 16,
    "smallnorb_azimuth": 18,
    "smallnorb_elevation": 9,
}
VTAB_SPLITS = {"train800": 800, "val200": 200, "train800val200": 1_000}


def size(source: str, split: str) -> Size:
    """Returns what is known of a split without opening it.

    Args:
        source: As for `keras_vit.data.open_source`; options and versions do not matter.
        split: As TensorFlow Datasets writes it.

    Raises:
        ValueError: If the data set is known and has no such split, or if VTAB has no such task.
    """
    name = source.partition("#")[0]
    kind, _, location = name.partition(":")
    if kind == "vtab":
        (task,) = vtab.check_tasks([location])
        return Size(VTAB_SPLITS.get(split), VTAB[task])
    known = LOCATIONS.get(name) or _dataset(name)
    if known is None:
        return Size()
    parts = splits.parse(split, known.splits, name)
    return Size(sum(part.stop - part.start for part in parts), known.classes, known.shape)


def _dataset(name: str) -> Known | None:
    for known_name, known in DATASETS.items():
        if name == known_name or name.startswith((f"{known_name}:", f"{known_name}/")):
            return known
    return None
