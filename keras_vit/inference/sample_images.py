"""Real images as encoded files, for verifying and calibrating artifacts and for display."""

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit import data
from keras_vit.data import errors as data_errors
from keras_vit.data import headers, sources
from keras_vit.inference import image_inputs, model_card
from keras_vit.inference.model_card import ModelCard
from keras_vit.runs import data_record
from keras_vit.util import checks, image_files
from keras_vit.util.progress import track

_ADVICE = "Repair or remove it, or pass --on_bad_image=skip"


class SampleImages(NamedTuple):
    """Encoded images.

    Attributes:
        contents: Content of each image file.
        labels: Classes, `[N]` or multi-hot `[N, classes]`; values `[N, k]`; or an object array of masks, each of the
            size of its image. None if the labels are unknown.
        names: Path of each image, or its position in the data set.
    """

    contents: list[bytes]
    labels: np.ndarray | None
    names: list[str]


def from_files(patterns: Sequence[str], limit: int | None = None, on_bad_image: str = "error") -> SampleImages:
    """Read up to `limit` image files, given by names, folders or patterns.

    `on_bad_image="skip"` skips broken links.

    Raises:
        FileNotFoundError: If a file does not exist, or no pattern matches.
        UnreadableImageError: If a link is broken and `on_bad_image` is `"error"`.
    """
    paths = image_files.find(patterns)[:limit]
    if not paths:
        raise FileNotFoundError(f"Expected images. No file matches {list(patterns)}.")
    contents, names, log = [], [], data_errors.log_of(on_bad_image)
    for path in paths:
        try:
            with open(path, "rb") as file:
                contents.append(file.read())
            names.append(path)
        except OSError as error:
            if not os.path.islink(path):
                raise
            data_errors.skip(path, error.strerror or str(error), log, _ADVICE)
    return SampleImages(contents, None, names)


def from_source(
    source: sources.Source, limit: int, on_bad_image: str = "error", card: ModelCard | None = None
) -> SampleImages:
    """Take up to `limit` encoded images with their labels from a data set, evenly spaced.

    `on_bad_image="skip"` skips files that do not exist or cannot be opened; `"error"` raises `UnreadableImageError`.
    With a `card`, labels are converted to class numbers of the model by the names of the classes.
    """
    contents, labels, names, log = [], [], [], data_errors.log_of(on_bad_image)
    count = min(limit, source.num_examples)
    for name, load in track(_examples(source, count), "Reading", count):
        try:
            example = load()
        except tf.errors.OpError as error:
            data_errors.skip(name, data_errors.describe(error), log, _ADVICE)
            continue
        image = example["image"]
        contents.append((image if image.dtype == tf.string else tf.io.encode_png(image)).numpy())
        labels.append(example[source.kind.label_key].numpy())
        names.append(name)
    found = _stacked(labels, source.kind.has_masks) if labels else None
    known = tuple(card.data.get("class_names", card.class_names)) if card else ()
    if found is not None and source.class_names and known not in ((), source.class_names):
        numbers = checks.class_numbers(source.class_names, known)
        found = None if not source.kind.is_exclusive or (numbers[found] < 0).any() else numbers[found]
        if found is None:
            logging.warning("The labels of %s are not used, because its classes differ from the model's.", source.name)
    return SampleImages(contents, found, names)


def of_any(images: Any) -> SampleImages:
    """Convert images of any form to encoded images.

    Args:
        images: File names, folders or patterns; contents of image files; or arrays of pixels from 0 to 255,
            `[N, H, W, C]` or `[H, W, C]`, of any dtype.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If `images` is empty, or an array does not contain pixels.
        TypeError: If `images` has another type.
    """
    found = image_inputs.of_any(images)
    if not found:
        raise ValueError("`images` must have at least one real image to verify with. Received: none.")
    return SampleImages([image.read() for image in found], None, [image.name for image in found])


def _stacked(labels: Sequence[np.ndarray], are_masks: bool) -> np.ndarray:
    """Return labels as one array: an object array for masks, whose sizes may differ."""
    if not are_masks:
        return np.stack(labels)
    found = np.empty(len(labels), object)
    for index, mask in enumerate(labels):
        found[index] = mask
    return found


def for_model(
    card: ModelCard,
    limit: int,
    *,
    patterns: Sequence[str] = (),
    split: str | None = None,
    on_bad_image: str | None = None,
) -> SampleImages:
    """Return up to `limit` real images for a model.

    Args:
        card: Card of the model.
        limit: Largest number of images.
        patterns: Names or glob patterns of image files. Without patterns, images are taken from the model's data set.
        split: Split of the data set. By default the evaluation split of the recipe.
        on_bad_image: `"error"` or `"skip"`. By default the setting of the recipe, or `"error"` without a recipe.

    Raises:
        ValueError: If no image can be read, or `patterns` is empty and the data set is unknown or not available.
        UnreadableImageError: If an image cannot be read and `on_bad_image` is `"error"`.
    """
    on_bad_image = on_bad_image or card.recipe_data.get("on_bad_image", "error")
    if patterns:
        images = from_files(patterns, limit, on_bad_image)
    else:
        images = from_source(open_data(card, split), limit, on_bad_image, card)
    return keep_readable(images, card.preprocess_function(), on_bad_image)


def keep_readable(
    images: SampleImages, preprocess: Callable[[tf.Tensor], tf.Tensor], on_bad_image: str = "skip"
) -> SampleImages:
    """Remove images that cannot be decoded by `preprocess`, a function of a scalar string, and log each of them.

    Raises:
        UnreadableImageError: If an image cannot be decoded and `on_bad_image` is `"error"`.
        ValueError: If no image can be decoded.
    """
    kept, log = [], data_errors.log_of(on_bad_image)
    for index, content in enumerate(track(images.contents, "Decoding")):
        try:
            preprocess(tf.constant(content))
            kept.append(index)
        except tf.errors.OpError as error:
            data_errors.skip(images.names[index], data_errors.describe(error), log, _ADVICE)
    if not kept:
        raise ValueError("Expected real images. None of the images can be read.")
    labels = None if images.labels is None else images.labels[np.asarray(kept)]
    return SampleImages([images.contents[i] for i in kept], labels, [images.names[i] for i in kept])


def within(images: SampleImages, max_pixels: int) -> SampleImages:
    """Remove and log images that the artifact rejects, which have more than `max_pixels` pixels (0: no limit)."""
    if not max_pixels:
        return images
    try:
        return keep_readable(images, lambda content: headers.check(content, max_pixels, untrusted=True))
    except ValueError as error:
        raise ValueError(
            f"At least one image must be within the limit of the artifact. Received: max_pixels={max_pixels} "
            f"(--max_pixels) and {len(images.contents)} larger images."
        ) from error


def open_data(card: ModelCard, split: str | None = None) -> sources.Source:
    """Open the data set of a model from its recorded path, and warn if it has changed since training.

    The default split is the reported split of the recipe.

    Raises:
        ValueError: If the data set is unknown or not available.
    """
    advice = "Pass images with --images='images/*.jpg'."
    recipe = card.recipe_data
    if "source" not in recipe:
        raise ValueError(f"Expected real images: the data set of the model is not known. {advice}")
    try:
        source = data.open_source(source_of(card) or "", split=split or card.reported_split)
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(
            f"Expected real images: the model's data set {recipe['source']!r} cannot be opened ({error}). {advice}"
        ) from error
    warn_of_changes(card, source)
    return source


def source_of(card: ModelCard) -> str | None:
    """Return the source of a model's data set in a form that opens from the working directory; None if unknown.

    The source is unknown if the data had an absolute path and the card belongs to an artifact, because an artifact does
    not contain the path.

    Raises:
        FileNotFoundError: If the model belongs to a run, and its data are not at any path that the run recorded.
    """
    source = card.recipe_data.get("source")
    if source and f":{model_card.CUT}" in source:
        return None
    return data_record.locate(card.run, source) if source and card.run else source


def warn_of_changes(card: ModelCard, source: sources.Source) -> None:
    """Log a warning if a split of the model's data set has changed since training."""
    recipe = card.recipe_data
    counts = {recipe.get(f"{name}_split"): card.data.get(f"num_{name}") for name in ("train", "eval")}
    count = counts.get(source.split)
    found = data_record.changes(card.run, source) if card.run else []
    if not found and count not in (None, source.num_examples):
        found = [f"{source.num_examples:,} examples instead of {count:,}"]
    if found:
        logging.warning("%s[%s] has changed since training: %s.", source.name, source.split, "; ".join(found))


def _examples(source: sources.Source, count: int) -> Iterator[tuple[str, Callable[[], dict[str, tf.Tensor]]]]:
    """Yield the name of each image with a function that loads the image."""
    if isinstance(source, sources.IndexedSource):
        for index in np.linspace(0, source.num_examples - 1, count).astype(int).tolist():
            name = source.origin(index) if isinstance(source, sources.FileSource) else f"{source.name} #{index}"
            yield name, functools.partial(source.fetch, tf.constant(index, tf.int64))
        return
    # Record files are read in order, so take the first images.
    for index, example in enumerate(itertools.islice(source.examples(), count)):
        yield f"{source.name} #{index}", functools.partial(dict, example)
