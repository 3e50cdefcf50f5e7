"""Real images as encoded files, to verify and calibrate artifacts with and to look at."""

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit import _checks, _image_files, data
from keras_vit._progress import track
from keras_vit.data import errors as data_errors
from keras_vit.data import headers, sources
from keras_vit.inference import image_inputs, model_card
from keras_vit.inference.model_card import ModelCard
from keras_vit.training import data_record


class SampleImages(NamedTuple):
    """Encoded images.

    Attributes:
        contents: Content of each image file.
        labels: Classes, `[N]` or multi-hot `[N, classes]`, values `[N, k]`, or masks of the sizes of their images, an
            object each; None if they are not known.
        names: Origin of each image.
    """

    contents: list[bytes]
    labels: np.ndarray | None
    names: list[str]


def from_files(patterns: Sequence[str], limit: int | None = None, on_bad_image: str = "error") -> SampleImages:
    """Read up to `limit` image files by names, folders or patterns; `"skip"` leaves out links that lead to nowhere.

    Raises:
        FileNotFoundError: If a file does not exist, or no pattern matches.
        UnreadableImageError: If a link leads to nowhere and `on_bad_image` is `"error"`.
    """
    paths = _image_files.find(patterns)[:limit]
    if not paths:
        raise FileNotFoundError(f"Expected images. No file matches {list(patterns)}.")
    contents, names = [], []
    for path in paths:
        try:
            with open(path, "rb") as file:
                contents.append(file.read())
            names.append(path)
        except OSError as error:
            if not os.path.islink(path):
                raise
            _leave_out(path, error.strerror or str(error), on_bad_image)
    return SampleImages(contents, None, names)


def from_source(
    source: sources.Source, limit: int, on_bad_image: str = "error", card: ModelCard | None = None
) -> SampleImages:
    """Take up to `limit` encoded images of a data set, spread evenly over it, with their labels.

    `on_bad_image="skip"` leaves out files that do not exist or cannot be opened; `"error"` raises
    `UnreadableImageError`. With a `card`, labels are the numbers of the model's classes, by their names.
    """
    contents, labels, names = [], [], []
    count = min(limit, source.num_examples)
    for name, load in track(_examples(source, count), "Reading", count):
        try:
            example = load()
        except tf.errors.OpError as error:
            _leave_out(name, data_errors.describe(error), on_bad_image)
            continue
        image = example["image"]
        contents.append((image if image.dtype == tf.string else tf.io.encode_png(image)).numpy())
        labels.append(example["mask" if source.label_kind == "mask" else "label"].numpy())
        names.append(name)
    found = _stacked(labels, source.label_kind) if labels else None
    known = tuple(card.data.get("class_names", card.class_names)) if card else ()
    if found is not None and source.class_names and known not in ((), source.class_names):
        numbers = _checks.class_numbers(source.class_names, known)
        found = None if source.label_kind != "class" or (numbers[found] < 0).any() else numbers[found]
        if found is None:
            logging.warning("The labels of %s are not used: its classes are not those of the model.", source.name)
    return SampleImages(contents, found, names)


def of_any(images: Any) -> SampleImages:
    """Take images in any form that Keras users have.

    Args:
        images: One or several file names, folders or patterns, contents of image files, or arrays of pixels from 0 to
            255, `[N, H, W, C]` or `[H, W, C]`, of any type.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If there are none, or an array does not contain pixels.
        TypeError: If they are something else.
    """
    found = image_inputs.of_any(images)
    if not found:
        raise ValueError("`images` must have at least one real image to verify with. Received: none.")
    return SampleImages([image.read() for image in found], None, [image.name for image in found])


def _stacked(labels: Sequence[np.ndarray], kind: str) -> np.ndarray:
    """Return labels as one array, in which masks of any size are objects."""
    if kind != "mask":
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
    """Return up to `limit` real images for a model: files, else some of the data set that it was evaluated on.

    `patterns` are names or glob patterns of files; empty for the data set. `split=None` is the recipe's
    evaluation split, `on_bad_image=None` the setting of the recipe, or an error.

    Raises:
        ValueError: If there are no patterns and the data set is not known or not available, or no image can be read.
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
    """Leave out images that `preprocess`, a function of a scalar string, cannot decode, and log each of them.

    Raises:
        UnreadableImageError: If one cannot be decoded and `on_bad_image` is `"error"`.
        ValueError: If none can be decoded.
    """
    kept = []
    for index, content in enumerate(track(images.contents, "Decoding")):
        try:
            preprocess(tf.constant(content))
            kept.append(index)
        except tf.errors.OpError as error:
            _leave_out(images.names[index], data_errors.describe(error), on_bad_image)
    if not kept:
        raise ValueError("Expected real images. None of those given can be read.")
    labels = None if images.labels is None else images.labels[np.asarray(kept)]
    return SampleImages([images.contents[i] for i in kept], labels, [images.names[i] for i in kept])


def within(images: SampleImages, max_pixels: int) -> SampleImages:
    """Leave out images that an artifact of at most `max_pixels` (0: no limit) refuses, and log each of them."""
    if not max_pixels:
        return images
    try:
        return keep_readable(images, lambda content: headers.check(content, max_pixels, untrusted=True))
    except ValueError as error:
        raise ValueError(
            f"At least one image must be within the limit of the artifact. Received: max_pixels={max_pixels} "
            f"(--max_pixels) and {len(images.contents)} larger images."
        ) from error


def _leave_out(name: str, reason: str, on_bad_image: str) -> None:
    """Log an image that cannot be read, or raise its error."""
    if on_bad_image == "error":
        raise data.UnreadableImageError(name, reason, "Repair or remove it, or pass --on_bad_image=skip") from None
    logging.warning("Left out the image %s: %s", name, reason)


def open_data(card: ModelCard, split: str | None = None) -> sources.Source:
    """Open the data set that a model was trained on, from its recorded place, and warn if it has changed since.

    `split=None` is the recipe's evaluation split.

    Raises:
        ValueError: If the data set is not known or not available.
    """
    advice = "Give images with --images='images/*.jpg'."
    recipe = card.recipe_data
    if "source" not in recipe:
        raise ValueError(f"Expected real images: the data set of the model is not known. {advice}")
    try:
        source = data.open_source(source_of(card) or "", split=split or recipe["eval_split"])
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(
            f"Expected real images: the model's data set {recipe['source']!r} cannot be opened ({error}). {advice}"
        ) from error
    warn_of_changes(card, source)
    return source


def source_of(card: ModelCard) -> str | None:
    """Return the data set that a model was trained on, as it opens from the working directory; None if not known.

    The card of an artifact has no absolute path.

    Raises:
        FileNotFoundError: If the model is one of a run, and its data are at no place that the run recorded.
    """
    source = card.recipe_data.get("source")
    if source and f":{model_card.CUT}" in source:
        return None
    return data_record.locate(card.run, source) if source and card.run else source


def warn_of_changes(card: ModelCard, source: sources.Source) -> None:
    """Log a warning if a split of the data set that a model was trained on is not as it was then."""
    recipe = card.recipe_data
    counts = {recipe.get(f"{name}_split"): card.data.get(f"num_{name}") for name in ("train", "eval")}
    count = counts.get(source.split)
    found = data_record.changes(card.run, source) if card.run else []
    if not found and count not in (None, source.num_examples):
        found = [f"{source.num_examples:,} examples instead of {count:,}"]
    if found:
        logging.warning("%s[%s] has changed since the training: %s.", source.name, source.split, "; ".join(found))


def _examples(source: sources.Source, count: int) -> Iterator[tuple[str, Callable[[], dict[str, tf.Tensor]]]]:
    """Yield the name of each image and the function that loads it."""
    if isinstance(source, sources.IndexedSource):
        for index in np.linspace(0, source.num_examples - 1, count).astype(int).tolist():
            name = source.origin(index) if isinstance(source, sources.FileSource) else f"{source.name} #{index}"
            yield name, functools.partial(source.fetch, tf.constant(index, tf.int64))
        return
    # Of a stream of records, the first ones.
    for index, example in enumerate(itertools.islice(source.examples(), count)):
        yield f"{source.name} #{index}", functools.partial(dict, example)
