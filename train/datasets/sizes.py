"""Sizes of data sets for planning, including public data sets that are not on this machine."""

from typing import Any, NamedTuple

import numpy as np
from absl import logging

from keras_vit import data
from keras_vit.data import sources, splits
from keras_vit.recipe import Recipe


class Size(NamedTuple):
    """Size of a split: number of examples and classes, and shape of the images. Unknown fields are None."""

    examples: int | None = None
    classes: int | None = None
    shape: tuple[int, int, int] | None = None


# Maps the beginning of a source's name to (examples of each split, number of classes).
DATASETS = {
    "tfds:cifar10": ({"train": 50_000, "test": 10_000}, 10),
    "tfds:cifar100": ({"train": 50_000, "test": 10_000}, 100),
    "tfds:oxford_iiit_pet": ({"train": 3_680, "test": 3_669}, 37),
    "tfds:oxford_flowers102": ({"train": 1_020, "validation": 1_020, "test": 6_149}, 102),
    "tfds:imagenet2012": ({"train": 1_281_167, "validation": 50_000}, 1_000),
    "tfds:imagenet21k": ({"full": 14_197_122}, 21_843),
    "folder:ADEChallengeData2016/images": ({"train": 20_210, "validation": 2_000}, 150),
    "tfrecord:jft": ({"train": 303_000_000, "test": 50_000}, 18_291),  # not public
    "fashion_mnist": ({"train": 60_000, "test": 10_000}, 10),  # only without a location
}


def size(source: str, split: str) -> Size:
    """Return the known sizes of a split without opening it. The options and the version of the source are ignored."""
    name = source.partition("#")[0]
    versions = (known for known in DATASETS if ":" in known and name.startswith((f"{known}:", f"{known}/")))
    known = name if name in DATASETS else next(versions, None)
    if known is None:
        return Size()
    examples, classes = DATASETS[known]
    shape = (28, 28, 1) if known == "fashion_mnist" else None
    return Size(sum(part.stop - part.start for part in splits.parse(split, examples, name)), classes, shape)


def of_recipe(recipe: Recipe, examples: int | None = None, classes: int | None = None) -> tuple[int, int, Any]:
    """Return the number of examples and classes that a recipe trains on, and the specification of a batch.

    The numbers come from the arguments, else from the table of public data sets, else from the data itself. The
    specification is None if the data were not opened.
    """
    name, split = recipe.data.source, recipe.data.train_split
    public = name.startswith(("tfds:", "tfrecord:"))  # slow to open, or not prepared
    known, source = size(name, split) if public else Size(), None
    given_examples, given_classes = examples, classes
    examples, classes = examples or known.examples, classes or known.classes
    if examples is None or classes is None or not public:
        try:
            source = data.open_source(name, split=split)
        except (OSError, ImportError) as error:
            known = size(name, split)
            examples, classes = examples or known.examples, classes or known.classes
            if examples is None or classes is None:
                raise ValueError(
                    f"The data of the recipe cannot be opened ({error}). Pass --examples and --classes instead."
                ) from error
            logging.warning("%s Planned for %s examples of %s classes.", error, f"{examples:,}", f"{classes:,}")
        else:
            examples, classes = given_examples or source.num_examples, given_classes or source.num_outputs
    if source is None and known.shape is not None:
        source = sources.ArraySource(name, split, np.zeros((1, *known.shape), np.uint8), np.zeros(1, np.int32), ["0"])
    batch = None if source is None else data.train_batches(source, recipe.data.pp_train, batch_size=1).element_spec
    return examples, classes, batch
