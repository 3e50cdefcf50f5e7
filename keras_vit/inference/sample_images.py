"""Real images as encoded files, to verify and calibrate artifacts with and to look at."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit import _io, data
from keras_vit.data import errors, sources
from keras_vit.inference.model_card import ModelCard
from keras_vit.training.errors import UnreadableInput


class SampleImages(NamedTuple):
    """Encoded images.

    Attributes:
        contents: Content of each image file.
        labels: Classes, `[N]` or multi-hot `[N, classes]`; None if they are not known.
        names: Origin of each image.
    """

    contents: list[bytes]
    labels: np.ndarray | None
    names: list[str]


def from_files(patterns: Sequence[str], limit: int | None = None) -> SampleImages:
    """Read image files.

    Args:
        patterns: File names or glob patterns.
        limit: Largest number of files; None for all.

    Raises:
        FileNotFoundError: If a file does not exist, or no pattern matches.
    """
    paths = _io.find_files(patterns)[:limit]
    if not paths:
        raise FileNotFoundError(f"Expected images. No file matches {list(patterns)}.")
    contents = []
    for path in paths:
        with open(path, "rb") as file:
            contents.append(file.read())
    return SampleImages(contents, None, paths)


def from_source(source: sources.Source, limit: int) -> SampleImages:
    """Take encoded images of a data set, spread evenly over it, with their labels.

    Args:
        source: Source that `keras_vit.data.open_source` returned.
        limit: Largest number of images.
    """
    contents, labels, names = [], [], []
    for index, image, label in _examples(source, min(limit, source.num_examples)):
        image = image if image.dtype == tf.string else tf.io.encode_png(image)
        contents.append(image.numpy())
        labels.append(label)
        names.append(source.origin(index) if isinstance(source, sources.FileSource) else f"{source.name} #{index}")
    return SampleImages(contents, np.stack(labels), names)


def for_model(
    card: ModelCard,
    limit: int,
    *,
    patterns: Sequence[str] = (),
    split: str | None = None,
    on_bad_image: str | None = None,
) -> SampleImages:
    """Return real images for a model: the user's own files, else some of the data set that it was evaluated on.

    Args:
        card: Description of the model.
        limit: Largest number of images.
        patterns: Files or glob patterns; empty for the data set of the model's recipe.
        split: Split of the data set; None for the recipe's evaluation split.
        on_bad_image: Whether an image that cannot be read is an `"error"` or left out (`"skip"`); None for the setting
            of the recipe, or an error.

    Raises:
        ValueError: If there are no patterns and the data set is not known or not available, or no image can be read.
        UnreadableInput: If an image cannot be read and `on_bad_image` is `"error"`.
    """
    recipe = card.recipe_data
    if patterns:
        images = from_files(patterns, limit)
    else:
        images = from_source(_open_source(recipe, split), limit)
    return keep_readable(images, card.preprocess_function(), on_bad_image or recipe.get("on_bad_image", "error"))


def prepare(contents: Sequence[bytes], preprocess: Callable[[tf.Tensor], tf.Tensor]) -> np.ndarray:
    """Apply preprocessing to encoded images: `[N, H, W, C]`."""
    return np.stack([preprocess(tf.constant(content)).numpy() for content in contents])


def keep_readable(
    images: SampleImages, preprocess: Callable[[tf.Tensor], tf.Tensor], on_bad_image: str = "skip"
) -> SampleImages:
    """Leave out images that cannot be decoded, and log each of them.

    Args:
        images: Encoded images.
        preprocess: Function from an encoded image (scalar string) to the model's input.
        on_bad_image: `"skip"`, or `"error"` to stop at the first that cannot be decoded.

    Raises:
        UnreadableInput: If one cannot be decoded and `on_bad_image` is `"error"`.
        ValueError: If none can be decoded.
    """
    kept = []
    for index, content in enumerate(images.contents):
        try:
            preprocess(tf.constant(content))
            kept.append(index)
        except tf.errors.OpError as error:
            reason = errors.describe(error)
            if on_bad_image == "error":
                advice = "Repair or remove it, or pass --on_bad_image=skip"
                raise UnreadableInput(f"unreadable image {images.names[index]}: {reason}. {advice}") from None
            logging.warning("Skipped the unreadable image %s: %s", images.names[index], reason)
    if not kept:
        raise ValueError(f"Expected real images. None of the {len(images.contents)} given can be read.")
    labels = None if images.labels is None else images.labels[kept]
    return SampleImages([images.contents[i] for i in kept], labels, [images.names[i] for i in kept])


def _open_source(recipe: Any, split: str | None) -> sources.Source:
    advice = "Give images with --images='images/*.jpg'."
    if "source" not in recipe:
        raise ValueError(f"Expected real images: the model does not say what it was trained on. {advice}")
    source = recipe["source"]
    try:
        return data.open_source(source, split=split or recipe["eval_split"])
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(
            f"Expected real images: the data set of the model, {source!r}, cannot be opened ({error}). {advice}"
        ) from error


def _examples(source: sources.Source, count: int) -> Iterator[tuple[int, tf.Tensor, np.ndarray]]:
    if isinstance(source, sources.IndexedSource):
        for index in np.linspace(0, source.num_examples - 1, count).astype(int).tolist():
            example = source.fetch(tf.constant(index, tf.int64))
            yield index, example["image"], example["label"].numpy()
        return
    # Of a stream of records, the first ones.
    for index, example in enumerate(source.examples().take(count)):
        yield index, example["image"], example["label"].numpy()
