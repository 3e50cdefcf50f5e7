"""IDX files, the format of MNIST, Fashion-MNIST, KMNIST and EMNIST (http://yann.lecun.com/exdb/mnist)."""

import contextlib
import gzip
import math
import re
import struct
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data import splits
from keras_vit.data.sources import ArraySource, check_expansion, check_labels, warn_of_missing_classes

# fmt: off
FASHION_MNIST = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)
# fmt: on
# Where Debian's package dataset-fashion-mnist puts the files.
FASHION_MNIST_FOLDER = "/usr/share/datasets/fashion-mnist"

_FILE = re.compile(r"(?P<prefix>.*?)(?P<part>train|t10k|test)-(?P<kind>images|labels)[-.]idx[13]-ubyte(\.gz)?")


def sizes(location: str, prefix: str | None = None, class_names: Any = None) -> dict[str, int]:
    """Return the number of examples of each split."""
    return {split: _header(files["labels"])[1][0] for split, files in _files(location, prefix).items()}


def open_source(
    location: str, split: str = "train", prefix: str | None = None, class_names: list[str] | None = None
) -> ArraySource:
    """Open a folder of IDX files; `prefix` chooses among several data sets, such as `"emnist-letters-"`."""
    name = f"idx:{location}"
    files = _files(location, prefix)
    labels = {key: _array(pair["labels"], 1) for key, pair in files.items()}
    parts = splits.parse(split, {key: len(values) for key, values in labels.items()}, name)
    images = {key: _array(files[key]["images"], 3) for key in {part.name for part in parts}}
    for key, values in images.items():
        if len(values) != len(labels[key]):
            raise ValueError(
                f"There must be one label per image. Received: {len(values):,} images in {files[key]['images']} and "
                f"{len(labels[key]):,} labels in {files[key]['labels']}."
            )
    if class_names is None:  # all splits count, so that they agree
        class_names = [str(i) for i in range(1 + max(int(values.max()) for values in labels.values()))]
    pixels, numbers = (
        np.concatenate([arrays[part.name][part.start : part.stop] for part in parts]) for arrays in (images, labels)
    )
    numbers = check_labels(numbers, len(class_names), lambda index: f"image {index} of {name}")
    warn_of_missing_classes(name, split, numbers, np.concatenate([labels[key] for key in images]))
    return ArraySource(name, split, pixels, numbers, class_names)


def open_fashion_mnist(location: str = "", split: str = "train") -> ArraySource:
    """Open Fashion-MNIST, by default from the folder of Debian's package, with the names of its classes."""
    location = _fashion_mnist_folder(location)
    source = open_source(location, split, class_names=list(FASHION_MNIST))
    source.name = f"fashion_mnist:{location}"
    return source


def fashion_mnist_sizes(location: str = "") -> dict[str, int]:
    """Return the number of examples of each split."""
    return sizes(_fashion_mnist_folder(location))


def _fashion_mnist_folder(location: str) -> str:
    location = location or FASHION_MNIST_FOLDER
    if not tf.io.gfile.isdir(location):
        raise FileNotFoundError(
            f"There is no folder {location!r}. Install the files with `sudo apt-get install dataset-fashion-mnist`, or "
            "give the folder that holds them: 'fashion_mnist:/folder'."
        )
    return location


def _files(location: str, prefix: str | None) -> dict[str, dict[str, str]]:
    """Return the paths of "images" and "labels" by split."""
    if not tf.io.gfile.isdir(location):
        raise FileNotFoundError(f"There is no folder {location!r}.")
    found: dict[str, dict[str, dict[str, str]]] = {}
    names = sorted(tf.io.gfile.listdir(location), reverse=True)  # an unpacked file comes after its .gz and wins
    for file in names:
        match = _FILE.fullmatch(file)
        if match:
            part = "train" if match["part"] == "train" else "test"
            path = f"{location.rstrip('/')}/{file}"
            found.setdefault(match["prefix"], {}).setdefault(part, {})[match["kind"]] = path
    if prefix is None and len(found) > 1 and "" not in found:
        raise ValueError(f"{location} holds several data sets: choose one with prefix=, of {sorted(found)}.")
    files = found.get(prefix or ("" if "" in found else next(iter(found), "")), {})
    complete = {key: files[key] for key in ("train", "test") if len(files.get(key, {})) == 2}
    if not complete:
        raise FileNotFoundError(
            f"{location} holds no IDX files with images and labels. Expected: train-images-idx3-ubyte and "
            f"train-labels-idx1-ubyte, with or without .gz. Received: {sorted(names)[:20]}."
        )
    return complete


def _header(path: str) -> tuple[int, tuple[int, ...]]:
    """Return the length of the header and the shape of the array, checked against the size of the file."""
    with _open(path) as file:
        compressed = isinstance(file, gzip.GzipFile)
        head = _unpacked(path, file, 4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] != 8 or not 1 <= head[3] <= 4:
            raise ValueError(
                f"{path} is not an IDX file of bytes. Expected: a file that begins with 00 00 08 and the number of "
                f"dimensions. Received: {head.hex(' ') or 'an empty file'}."
            )
        dimensions = _unpacked(path, file, 4 * head[3])
        if len(dimensions) < 4 * head[3]:
            raise ValueError(f"{path} ends within its header.")
    shape = struct.unpack(f">{head[3]}I", dimensions)
    length = 4 + 4 * head[3]
    size, expected = tf.io.gfile.stat(path).length, length + math.prod(shape)
    if compressed:
        check_expansion(path, size, expected)
        # The last four bytes tell the unpacked size, modulo 2**32.
        with tf.io.gfile.GFile(path, "rb") as raw:
            raw.seek(max(size - 4, 0))
            size, expected = int.from_bytes(raw.read(4), "little"), expected % 2**32
    if size != expected:
        raise _damaged(path, shape, expected, f"{size:,}")
    return length, shape


def _array(path: str, dimensions: int) -> np.ndarray:
    """Read an array, no more than its header tells."""
    length, shape = _header(path)
    if len(shape) != dimensions or 0 in shape:
        raise ValueError(
            f"{path} must hold an array of {dimensions} dimensions, none of them 0. Received: {list(shape)}."
        )
    expected = length + math.prod(shape)
    with _open(path) as file:
        data = _unpacked(path, file, expected + 1)
    if len(data) != expected:
        raise _damaged(path, shape, expected, "more" if len(data) > expected else f"{len(data):,}")
    return np.frombuffer(data, np.uint8, offset=length).reshape(shape)


def _damaged(path: str, shape: tuple[int, ...], expected: int, size: str) -> ValueError:
    return ValueError(
        f"{path} is damaged or incomplete: its header tells of {list(shape)} values, {expected:,} bytes with the "
        f"header, and there are {size}. Fetch the file again."
    )


@contextlib.contextmanager
def _open(path: str):
    """Open a file, unpacked if it is compressed."""
    with tf.io.gfile.GFile(path, "rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield gzip.GzipFile(fileobj=raw) if compressed else raw


def _unpacked(path: str, file, count: int) -> bytes:
    """Read at most `count` bytes of a file."""
    try:
        return file.read(count)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked ({error}). Is the download complete?") from error
