"""Looks through data sets: what can be read, how large and how many the pictures are, and which occur twice."""

import collections
import concurrent.futures
import dataclasses
import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from keras_vit.data import errors, images
from keras_vit.data.pipeline import train_batches
from keras_vit.data.sources import IndexedSource, Source


@dataclasses.dataclass(frozen=True)
class Picture:
    """What was found out about one picture.

    Attributes:
        origin: its path, or what else names it.
        classes: its class numbers.
        size: (height, width), or `None` when it cannot be read.
        digest: hash of its pixels.
        problem: why it cannot be read, or an empty string.
    """

    origin: str
    classes: tuple[int, ...] = ()
    size: tuple[int, int] | None = None
    digest: bytes = b""
    problem: str = ""


def look(source: Source, threads: int = 0, on_progress: Callable[[int], None] = lambda done: None) -> list[Picture]:
    """Reads and decodes all pictures of a source.

    Args:
        source: what `open_source` returned.
        threads: how many pictures at a time; one for each core if 0.
        on_progress: called with the number of pictures that are done.

    Returns:
        One entry for each picture, in order.
    """
    pictures = []
    with concurrent.futures.ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        loaders = _loaders(source)
        while chunk := list(itertools.islice(loaders, 256)):
            pictures += pool.map(_look_at, *zip(*chunk, strict=True))
            on_progress(len(pictures))
    return pictures


def _loaders(source: Source) -> Iterator[tuple[str, Callable[[], dict]]]:
    """(name, function that loads it) of each example."""
    if isinstance(source, IndexedSource):
        for index in range(source.num_examples):
            yield source.origin(index), lambda index=index: source.fetch(tf.constant(index, tf.int64))
        return
    for file in range(len(source.slices)):
        for item in source.read(tf.constant(file, tf.int64)):
            yield source.origin(file, int(item["number"])), lambda record=item["record"]: source.parse(record)


def _look_at(origin: str, load: Callable[[], dict]) -> Picture:
    try:
        example = load()
        image, label = example["image"], example["label"].numpy()
        if image.dtype == tf.string:
            image = images.decode_eagerly(image)
    except tf.errors.OpError as error:
        return Picture(origin, problem=errors.describe(error))
    pixels = image.numpy()
    digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()
    classes = tuple(np.flatnonzero(label).tolist()) if label.ndim else (int(label),)
    return Picture(origin, classes, pixels.shape[:2], digest)


def count_classes(pictures: list[Picture], num_classes: int) -> list[int]:
    """How many readable pictures each class has."""
    counts = collections.Counter(number for picture in pictures for number in picture.classes)
    return [counts[number] for number in range(num_classes)]


def duplicates(by_split: dict[str, list[Picture]]) -> list[list[tuple[str, Picture]]]:
    """Groups of pictures with the same pixels, as (split, picture), those across splits first.

    Args:
        by_split: the pictures of each split.
    """
    groups = collections.defaultdict(list)
    for split, pictures in by_split.items():
        for picture in pictures:
            if not picture.problem:
                groups[picture.digest].append((split, picture))
    found = [group for group in groups.values() if len(group) > 1]
    return sorted(found, key=lambda group: len({split for split, _ in group}) == 1)


def contact_sheet(source: Source, pp: str, count: int = 64, seed: int = 0) -> tuple[bytes, list[list[str]]]:
    """Draw images as the model sees them in training: the first ones, augmented.

    Args:
        source: what `open_source` returned.
        pp: preprocessing string.
        count: how many images.
        seed: of order and augmentation.

    Returns:
        The PNG file, and the classes of its images row by row.
    """
    batch = next(iter(train_batches(source, pp, batch_size=count, seed=seed, on_bad_image="skip")))
    pictures = batch["image"].numpy()
    if pictures.dtype != np.uint8:  # a value operation stands before others, so what the host gives is not bytes
        low, high = pictures.min(), pictures.max()
        pictures = ((pictures - low) * (255 / max(high - low, 1e-6))).astype(np.uint8)
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    pictures = np.pad(pictures, [(0, rows * columns - count), (1, 1), (1, 1), (0, 0)], constant_values=255)
    _, height, width, channels = pictures.shape
    # [rows * columns, h, w, c] -> [rows, columns, h, w, c] -> [rows * h, columns * w, c]
    sheet = pictures.reshape(rows, columns, height, width, channels).transpose(0, 2, 1, 3, 4)
    png = tf.io.encode_png(sheet.reshape(rows * height, columns * width, channels)).numpy()
    names = [_class_names(source, label) for label in batch["label"].numpy()]
    return png, [names[start : start + columns] for start in range(0, count, columns)]


def _class_names(source: Source, label: np.ndarray) -> str:
    numbers = np.flatnonzero(label) if label.ndim else [label]
    return " + ".join(source.class_names[number] for number in numbers) or "-"
