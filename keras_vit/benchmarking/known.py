"""Sizes of public data sets, for planning without having them."""

import dataclasses
from collections.abc import Mapping

from keras_vit.data import splits


@dataclasses.dataclass(frozen=True)
class Known:
    """Size of a data set.

    Attributes:
        splits: Number of examples of each split.
        classes: Number of classes.
    """

    splits: Mapping[str, int]
    classes: int


DATASETS = {
    "digits": Known({"train": 1_437, "test": 360}, 10),
    "fashion_mnist": Known({"train": 60_000, "test": 10_000}, 10),
    "tfds:cifar10": Known({"train": 50_000, "test": 10_000}, 10),
    "tfds:cifar100": Known({"train": 50_000, "test": 10_000}, 100),
    "tfds:oxford_iiit_pet": Known({"train": 3_680, "test": 3_669}, 37),
    "tfds:oxford_flowers102": Known({"train": 1_020, "validation": 1_020, "test": 6_149}, 102),
    "tfds:imagenet2012": Known({"train": 1_281_167, "validation": 50_000}, 1_000),
    "tfds:imagenet21k": Known({"full": 14_197_122}, 21_843),
    "tfrecord:jft": Known({"train": 303_000_000, "test": 50_000}, 18_291),  # not public
}


def examples_and_classes(source: str, split: str) -> tuple[int | None, int | None]:
    """Number of examples and classes of a split.

    Args:
        source: As for `keras_vit.data.open_source`; options and versions do not matter.
        split: As TensorFlow Datasets writes it.

    Returns:
        None for what is not known.
    """
    name = source.partition("#")[0]
    for known_name, known in DATASETS.items():
        if name == known_name or name.startswith((f"{known_name}:", f"{known_name}/")):
            parts = splits.parse(split, known.splits, known_name)
            return sum(part.stop - part.start for part in parts), known.classes
    if name.startswith("vtab:"):
        return {"train800": 800, "val200": 200, "train800val200": 1_000}.get(split), None
    return None, None
