"""Real pictures as encoded files, to verify and calibrate artefacts with."""

import glob
import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Pictures(NamedTuple):
    """Encoded pictures.

    Attributes:
        contents: One byte string a picture.
        labels: Their classes, `[N]` or multi-hot `[N, classes]`; None if unknown.
        names: Where each comes from.
    """

    contents: list[bytes]
    labels: np.ndarray | None
    names: list[str]


def find_files(patterns: list[str]) -> list[str]:
    """Expands file names and glob patterns, in order and without repetition.

    Args:
        patterns: File names, or patterns such as `pictures/**/*.jpg`. A name that exists is taken as it is, even with
            `*` in it.

    Returns:
        The paths. A pattern without a match stays in the list as it is, so that reading it reports it.
    """
    paths = []
    for pattern in patterns:
        found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        paths.extend([path for path in found if not os.path.isdir(path) or found == [pattern]] or [pattern])
    return list(dict.fromkeys(paths))


def from_files(patterns: list[str], limit: int | None = None) -> Pictures:
    """Reads picture files.

    Raises:
        FileNotFoundError: If a file does not exist, or no pattern matches.
    """
    paths = find_files(patterns)[:limit]
    if not paths:
        raise FileNotFoundError(f"Expected pictures. No file matches {patterns}.")
    contents = []
    for path in paths:
        with open(path, "rb") as file:
            contents.append(file.read())
    return Pictures(contents, None, paths)


def from_arrays(images: np.ndarray, labels: np.ndarray | None = None) -> Pictures:
    """Encodes uint8 images `[N, H, W, 1 or 3]` without loss.

    Raises:
        ValueError: If the images are not uint8.
    """
    if np.asarray(images[0]).dtype != np.uint8:
        raise ValueError(f"images must be uint8. Received: {np.asarray(images[0]).dtype}.")
    contents = [tf.io.encode_png(image).numpy() for image in images]
    return Pictures(contents, None if labels is None else np.asarray(labels), [f"#{i}" for i in range(len(contents))])


def prepare(contents: list[bytes], preprocess) -> np.ndarray:
    """Applies preprocessing to encoded pictures: float32 `[N, H, W, C]`."""
    return np.stack([preprocess(tf.constant(content)).numpy() for content in contents])
