"""Sizes of public data sets, for planning without them."""

from typing import NamedTuple

from keras_vit.data import splits


class Size(NamedTuple):
    """Size of a split: its examples, its classes, and the shape of its arrays. None for what is unknown."""

    examples: int | None = None
    classes: int | None = None
    shape: tuple[int, int, int] | None = None


# Examples of the splits, and classes, by the beginning of the names of sources.
DATASETS = {
    "tfds:cifar10": ({"train": 50_000, "test": 10_000}, 10),
    "tfds:cifar100": ({"train": 50_000, "test": 10_000}, 100),
    "tfds:oxford_iiit_pet": ({"train": 3_680, "test": 3_669}, 37),
    "tfds:oxford_flowers102": ({"train": 1_020, "validation": 1_020, "test": 6_149}, 102),
    "tfds:imagenet2012": ({"train": 1_281_167, "validation": 50_000}, 1_000),
    "tfds:imagenet21k": ({"full": 14_197_122}, 21_843),
    "tfrecord:jft": ({"train": 303_000_000, "test": 50_000}, 18_291),  # not public
}
# Sources without a location: with one, they may be anything.
WITHOUT_LOCATION = {
    "digits": ({"train": 1_437, "test": 360}, 10),
    "fashion_mnist": ({"train": 60_000, "test": 10_000}, 10),
}
SHAPES = {"fashion_mnist": (28, 28, 1)}


def size(source: str, split: str) -> Size:
    """Return the size of a split without opening it, as far as it is known.

    Options and version of the source are ignored.
    """
    name = source.partition("#")[0]
    matching = (entry for entry in DATASETS if name == entry or name.startswith((f"{entry}:", f"{entry}/")))
    known = WITHOUT_LOCATION.get(name) or DATASETS.get(next(matching, ""))
    if known is None:
        return Size()
    examples, classes = known
    return Size(sum(part.stop - part.start for part in splits.parse(split, examples, name)), classes, SHAPES.get(name))
