"""IDX files, the format of MNIST, Fashion-MNIST, KMNIST and EMNIST (http://yann.lecun.com/exdb/mnist)."""

import functools
import gzip
import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.labels import check_labels, classes_up_to
from keras_vit.data.readers.data_set import DataSet, in_turn, of_arrays
from keras_vit.data.sources import check_expansion

# fmt: off
FASHION_MNIST = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)
# fmt: on
# Debian's package dataset-fashion-mnist installs its files here.
FASHION_MNIST_FOLDER = "/usr/share/datasets/fashion-mnist"


def read(location: str, prefix: str = "", class_names: list[str] | None = None) -> DataSet:
    """Return a folder of IDX files. `prefix`, such as `"emnist-letters-"`, chooses one of several data sets."""
    return _read(f"idx:{location}", location, prefix, class_names)


def read_fashion_mnist(location: str = "") -> DataSet:
    """Return Fashion-MNIST with its class names, by default from the folder of Debian's package."""
    location = location or FASHION_MNIST_FOLDER
    if not tf.io.gfile.isdir(location):
        raise FileNotFoundError(
            f"There is no folder {location!r}. Install the files with `sudo apt-get install dataset-fashion-mnist`, or "
            "pass the folder that contains them: 'fashion_mnist:/folder'."
        )
    return _read(f"fashion_mnist:{location}", location, "", FASHION_MNIST)


def _read(name: str, location: str, prefix: str, class_names: Sequence[str] | None) -> DataSet:
    labels, images = {}, []
    for split, part in (("train", "train"), ("test", "t10k")):
        kinds = f"{prefix}{part}-images?idx3-ubyte*", f"{prefix}{part}-labels?idx1-ubyte*"
        found = [tf.io.gfile.glob(f"{location.rstrip('/')}/{kind}") for kind in kinds]
        if all(found):
            labels[split] = _array(min(found[1]), 1)  # prefer the uncompressed file
            count = len(labels[split])
            images.append((count, functools.partial(_array, min(found[0]), 3, count)))
    if not labels:
        raise FileNotFoundError(
            f"There is no folder {location!r} with IDX files of images and labels. Expected: "
            f"{prefix}train-images-idx3-ubyte and {prefix}train-labels-idx1-ubyte, with or without .gz."
        )
    joined = np.concatenate(list(labels.values()))
    class_names = class_names or classes_up_to(int(joined.max()), name)  # the same classes for all splits
    joined = check_labels(joined, len(class_names), lambda index: f"image {index} of {name}")
    return of_arrays(name, images, joined, class_names, in_turn({split: len(part) for split, part in labels.items()}))


def _array(path: str, dimensions: int, labels: int | None = None) -> np.ndarray:
    """Read an array, whose shape must match the size of the file and the number of labels."""
    size = tf.io.gfile.stat(path).length
    try:
        with tf.io.gfile.GFile(path, "rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file = gzip.GzipFile(fileobj=raw) if compressed else raw
            header = file.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions or header[:4] != bytes([0, 0, 8, dimensions]):
                raise ValueError(
                    f"{path} is not an IDX file of bytes in {dimensions} dimensions. Expected: a file that begins with "
                    f"00 00 08 {dimensions:02}. Received: {header[:4].hex(' ') or 'an empty file'}."
                )
            shape = struct.unpack(f">{dimensions}I", header[4:])
            expected = len(header) + math.prod(shape)
            if compressed:
                check_expansion(path, size, expected)
            content = file.read(math.prod(shape) + 1) if compressed or size == expected else b""
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked ({error}). Is the download complete?") from error
    if len(content) != math.prod(shape) or 0 in shape:
        raise ValueError(
            f"{path} is damaged or incomplete. Expected: {expected:,} bytes, an array of {list(shape)} after its "
            "header. Fetch the file again."
        )
    if labels not in (None, shape[0]):
        raise ValueError(f"There must be one label per image. Received: {shape[0]:,} in {path}, {labels:,} labels.")
    return np.frombuffer(content, np.uint8).reshape(shape)
