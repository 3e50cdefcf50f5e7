"""Audit of data sets: unreadable images, sizes, classes, and duplicates."""

import collections
import dataclasses
import hashlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_vit.data import errors, images
from keras_vit.data.sources import Source, in_parallel


@dataclasses.dataclass(frozen=True)
class ImageReport:
    """Findings about one image."""

    origin: str  # its path, or another name
    classes: tuple[int, ...] = ()
    size: tuple[int, int] | None = None  # height and width
    digest: bytes = b""  # of the pixels
    problem: str = ""  # why it cannot be read


def audit(
    source: Source, threads: int = 0, on_progress: Callable[[int], None] = lambda done: None
) -> list[ImageReport]:
    """Read and decode all images of a source, `threads` at a time (0: one per core); one report each, in order."""
    reports: list[ImageReport] = []
    for report in in_parallel(lambda named: _report(source, *named), source.items(), threads):
        reports.append(report)
        on_progress(len(reports))
    return reports


def _report(source: Source, origin: str, item: dict[str, tf.Tensor]) -> ImageReport:
    try:
        example = source.load(item)
        image, label = example["image"], example["label"].numpy()
        if image.dtype == tf.string:
            image = images.decode_eagerly(image)
    except tf.errors.OpError as error:
        return ImageReport(origin, problem=errors.describe(error))
    pixels = image.numpy()
    digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()
    classes = tuple(np.flatnonzero(label).tolist()) if label.ndim else (int(label),)
    return ImageReport(origin, classes, pixels.shape[:2], digest)


def count_classes(reports: list[ImageReport], num_classes: int) -> list[int]:
    """Return the number of readable images per class."""
    counts = collections.Counter(number for report in reports for number in report.classes)
    return [counts[number] for number in range(num_classes)]


def duplicates(by_split: dict[str, list[ImageReport]]) -> list[list[tuple[str, ImageReport]]]:
    """Return groups of (split, report) of images with the same pixels, those across splits first."""
    groups = collections.defaultdict(list)
    for split, reports in by_split.items():
        for report in reports:
            if not report.problem:
                groups[report.digest].append((split, report))
    repeated = [group for group in groups.values() if len(group) > 1]
    return sorted(repeated, key=lambda group: len({split for split, _ in group}) == 1)
