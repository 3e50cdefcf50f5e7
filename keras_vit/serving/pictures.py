"""Real pictures as encoded files, to verify and calibrate artefacts with."""

import glob
import os
import re
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.training.errors import UnreadableInput


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


def keep_readable(pictures: Pictures, preprocess, on_bad_image: str = "skip") -> Pictures:
    """Leave out images that cannot be decoded, and warn about each.

    Args:
        pictures: Encoded images.
        preprocess: Function from an encoded image (scalar string) to the model's input.
        on_bad_image: `"skip"`, or `"error"` to stop at the first that cannot be decoded.

    Raises:
        UnreadableInput: If one cannot be decoded and `on_bad_image` is `"error"`.
        ValueError: If none can be decoded.
    """
    kept = []
    for index, content in enumerate(pictures.contents):
        try:
            preprocess(tf.constant(content))
            kept.append(index)
        except tf.errors.OpError as error:
            if on_bad_image == "error":
                raise UnreadableInput(
                    f"unreadable image {pictures.names[index]}: {reason(error)}. Repair or remove it, or pass "
                    "--on_bad_image=skip"
                ) from None
            logging.warning("Left out, because it cannot be read: %s (%s)", pictures.names[index], reason(error))
    if not kept:
        raise ValueError(f"Expected real pictures. None of the {len(pictures.contents)} given can be read.")
    labels = None if pictures.labels is None else pictures.labels[kept]
    return Pictures([pictures.contents[i] for i in kept], labels, [pictures.names[i] for i in kept])


def reason(error: tf.errors.OpError) -> str:
    """What TensorFlow says about an unreadable picture, without the names of operations around it."""
    message = str(error.message).removeprefix("{{function_node")
    message = re.sub(r"^.*?\}\}\s*", "", message, flags=re.DOTALL)
    return re.sub(r"\s*\[Op:.*", "", message, flags=re.DOTALL).strip() or type(error).__name__
