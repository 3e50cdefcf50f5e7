"""Audit of data sets: unreadable images, sizes, labels, and duplicates."""

import collections
import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data import errors, images
from keras_vit.data.pipeline import train_batches
from keras_vit.data.sources import Source, in_parallel
from keras_vit.inference.masks import palette


@dataclasses.dataclass(frozen=True)
class ImageReport:
    """Findings about one image.

    Attributes:
        origin: Path or another name of the image.
        label: Class numbers or values. For a mask, the numbers of the classes that the mask contains.
        size: (height, width). None if the image cannot be read.
        digest: Hash of the pixels.
        problem: Reason why the image or its mask cannot be read, or an empty string.
        pixels: Number of pixels of each class in `label` and, last, of ignored pixels. Empty without a mask.
    """

    origin: str
    label: tuple[float, ...] = ()
    size: tuple[int, int] | None = None
    digest: bytes = b""
    problem: str = ""
    pixels: tuple[int, ...] = ()


def audit(
    source: Source, threads: int = 0, on_progress: Callable[[int], None] = lambda done: None
) -> list[ImageReport]:
    """Decode all images of a source in `threads` threads (0: one per core) and return a report per image, in order."""
    reports: list[ImageReport] = []
    for report in in_parallel(lambda named: _report(source, *named), source.items(), threads):
        reports.append(report)
        on_progress(len(reports))
    return reports


def _report(source: Source, origin: str, item: dict[str, tf.Tensor]) -> ImageReport:
    try:
        example = source.load(item)
        image = images.decode_example(example)
    except tf.errors.OpError as error:
        return ImageReport(origin, problem=errors.describe(error))
    array = image.numpy()
    digest = hashlib.sha256(repr(array.shape).encode() + array.tobytes()).digest()
    if source.kind.has_masks:
        counts = np.bincount(example["mask"].numpy().ravel(), minlength=source.num_classes)
        present = np.flatnonzero(counts[: source.num_classes])
        pixels = [*counts[present].tolist(), int(counts[source.num_classes :].sum())]
        return ImageReport(origin, tuple(present.tolist()), array.shape[:2], digest, pixels=tuple(pixels))
    label = example["label"].numpy()
    if source.kind.is_independent:
        label = np.flatnonzero(label)
    return ImageReport(origin, tuple(label.ravel().tolist()), array.shape[:2], digest)


def count_classes(reports: list[ImageReport], num_classes: int) -> list[int]:
    """Return the number of readable images per class."""
    counts = collections.Counter(number for report in reports for number in report.label)
    return [counts[number] for number in range(num_classes)]


def pixel_shares(reports: list[ImageReport], num_classes: int) -> list[float]:
    """Return the share of pixels of each class and, last, of ignored pixels. The list is empty without masks."""
    counts = np.zeros(num_classes + 1)
    for report in reports:
        counts[np.array([*report.label, -1], int)[: len(report.pixels)]] += report.pixels
    return (counts / counts.sum()).tolist() if counts.any() else []


def describe_values(reports: list[ImageReport], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return count, mean, population standard deviation, minimum and maximum of each value in readable images."""
    rows = [report.label for report in reports if names and not report.problem]  # only value labels have equal lengths
    return {
        name: {
            "count": len(column),
            "mean": float(column.mean()),
            "deviation": float(column.std()),
            "min": float(column.min()),
            "max": float(column.max()),
        }
        for name, column in zip(names, np.array(rows, np.float64).T, strict=False)  # without rows, there are no columns
    }


def duplicates(by_split: dict[str, list[ImageReport]]) -> list[list[tuple[str, ImageReport]]]:
    """Group images with the same pixels, as lists of (split, report). Groups across several splits come first."""
    groups = collections.defaultdict(list)
    for split, reports in by_split.items():
        for report in reports:
            if not report.problem:
                groups[report.digest].append((split, report))
    repeated = [group for group in groups.values() if len(group) > 1]
    return sorted(repeated, key=lambda group: len({split for split, _ in group}) == 1)


def contact_sheet(source: Source, pp: str, count: int = 64, seed: int = 0) -> tuple[bytes, list[list[str]]]:
    """Return a PNG of at most `count` different augmented training images, and their labels row by row.

    Masks are drawn over the images in the colors of their classes.
    """
    count = min(count, source.num_examples)
    batch = next(iter(train_batches(source, pp, batch_size=count, seed=seed, on_bad_image="skip")))
    tiles = batch["image"].numpy()
    if tiles.dtype != np.uint8:  # the host returns floats if a value operation is not at the end of the string
        low, high = tiles.min(), tiles.max()
        tiles = ((tiles - low) * (255 / max(high - low, 1e-6))).astype(np.uint8)
    if "mask" in batch:
        tiles = (tiles.astype(np.uint16) + palette(256)[batch["mask"].numpy() % 256]) // 2
        tiles = tiles.astype(np.uint8)
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    tiles = np.pad(tiles, [(0, rows * columns - count), (1, 1), (1, 1), (0, 0)], constant_values=255)
    _, height, width, channels = tiles.shape
    # [rows * columns, h, w, c] -> [rows, columns, h, w, c] -> [rows * h, columns * w, c]
    sheet = tiles.reshape(rows, columns, height, width, channels).transpose(0, 2, 1, 3, 4)
    png = tf.io.encode_png(sheet.reshape(rows * height, columns * width, channels)).numpy()
    labels = map(np.unique, batch["mask"].numpy()) if "mask" in batch else batch["label"].numpy()
    names = [_label_text(source, label) for label in labels]
    return png, [names[start : start + columns] for start in range(0, count, columns)]


def _label_text(source: Source, label: np.ndarray) -> str:
    if source.kind.has_values:
        return " ".join(f"{name}={value:g}" for name, value in zip(source.value_names, label.tolist(), strict=True))
    if source.kind.has_masks:
        numbers = label[label < source.num_classes]
    else:
        numbers = np.flatnonzero(label) if label.ndim else label[None]
    return " + ".join(source.class_names[number] for number in numbers) or "-"
