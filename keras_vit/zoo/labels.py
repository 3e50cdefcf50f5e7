"""Class names of ImageNet heads, and predictions by name."""

import functools
import gzip
import importlib.resources
from collections.abc import Sequence

import numpy as np

from keras_vit.util import checks

_FILES = {1000: "imagenet1k.tsv.gz", 21_843: "imagenet21k.tsv.gz"}


@functools.cache
def imagenet_classes(classes: int = 1000) -> tuple[tuple[str, str], ...]:
    """Return (WordNet identifier, name) for each class of an ImageNet head, in the order of published checkpoints.

    Args:
        classes: Number of classes: 1000 for ImageNet-1k, 21843 for ImageNet-21k.

    Raises:
        ValueError: If ImageNet has no head with this number of classes.

    Example:
    >>> keras_vit.zoo.imagenet_classes()[0]
    ('n01440764', 'tench, Tinca tinca')
    """
    if classes not in _FILES:
        raise ValueError(f"ImageNet heads have 1000 or 21843 classes. Received: classes={classes}. Pass `class_names`.")
    file = importlib.resources.files("keras_vit.zoo") / "assets" / _FILES[classes]
    with file.open("rb") as compressed, gzip.open(compressed, "rt", encoding="utf-8") as text:
        pairs = (line.rstrip("\n").partition("\t") for line in text)
        return tuple((identifier, name) for identifier, _, name in pairs)


def decode_predictions(
    predictions: np.ndarray, top: int = 5, class_names: Sequence[str] | None = None
) -> list[list[tuple[str, str, float]]]:
    """Return the best classes of each image by name.

    ImageNet classes have WordNet's names with all synonyms, such as `"African elephant, Loxodonta africana"`.
    `keras.applications` uses the first synonym with underscores, which is `name.split(", ")[0].replace(" ", "_")`.

    Args:
        predictions: Array `[batch, classes]` of logits or probabilities.
        top: Number of classes per image.
        class_names: Names of the classes. Defaults to the names of ImageNet-1k or ImageNet-21k, depending on the number
            of classes.

    Returns:
        A list for each image, with `top` tuples (identifier, name, score) from best to worst. The identifier comes from
        WordNet, or is the number of the class if `class_names` is passed. The score is the logit or probability.

    Raises:
        ValueError: If the shapes do not agree, or if `class_names` is None and the classes are not ImageNet classes.

    Example:
    >>> predictions = np.array([[0.1, 0.7, 0.2]])
    >>> keras_vit.decode_predictions(predictions, top=2, class_names=["cat", "dog", "fox"])
    [[('1', 'dog', 0.7), ('2', 'fox', 0.2)]]
    """
    predictions = checks.numbers_of("predictions", predictions, "an array of the shape [batch, classes]", ndim=2)
    checks.positive_int("top", top)
    count = predictions.shape[1]
    if class_names is None:
        names = imagenet_classes(count)
    elif len(checks.sequence("class_names", class_names, "names")) != count:
        raise ValueError(f"`class_names` must name {count} classes. Received: {len(class_names)} names.")
    else:
        names = tuple((str(index), name) for index, name in enumerate(class_names))
    order = np.argsort(-predictions, axis=1, kind="stable")[:, :top]
    return [
        [(*names[index], float(row[index])) for index in best] for row, best in zip(predictions, order, strict=True)
    ]
