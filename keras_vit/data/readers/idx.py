"""IDX files, the format of MNIST, Fashion-MNIST, KMNIST and EMNIST (http://yann.lecun.com/exdb/mnist)."""

import contextlib
import functools
import gzip
import math
import re
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data.readers.data_set import DataSet, in_turn, of_arrays
from keras_vit.data.sources import check_expansion, check_labels

# fmt: off
FASHION_MNIST = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)
# fmt: on
# Where Debian's package dataset-fashion-mnist puts the files.
FASHION_MNIST_FOLDER = "/usr/share/datasets/fashion-mnist"

_FILE = re.compile(r"(?P<prefix>.*?)(?P<part>train|t10k|test)-(?P<kind>images|labels)[-.]idx[13]-ubyte(\.gz)?")


def read(location: str, prefix: str | None = None, class_names: list[str] | None = None) -> DataSet:
    """Return a folder of IDX files; `prefix` chooses among several data sets, such as `"emnist-letters-"`."""
    return _read(f"idx:{location}", location, prefix, class_names)


def read_fashion_mnist(location: str = "") -> DataSet:
    """Return Fashion-MNIST, by default from the folder of Debian's package, with the names of its classes."""
    location = location or FASHION_MNIST_FOLDER
    if not tf.io.gfile.isdir(location):
        raise FileNotFoundError(
            f"There is no folder {location!r}. Install the files with `sudo apt-get install dataset-fashion-mnist`, or "
            "give the folder that holds them: 'fashion_mnist:/folder'."
        )
    return _read(f"fashion_mnist:{location}", location, None, FASHION_MNIST)


def _read(name: str, location: str, prefix: str | None, class_names: Sequence[str] | None) -> DataSet:
    files = _files(location, prefix)
    labels = {split: _array(pair["labels"], 1) for split, pair in files.items()}
    joined = np.concatenate(list(labels.values()))
    if class_names is None:  # all splits count, so that they agree
        class_names = [str(i) for i in range(1 + int(joined.max()))]
    joined = check_labels(joined, len(class_names), lambda index: f"image {index} of {name}")
    lengths = {split: len(values) for split, values in labels.items()}
    images = [(lengths[split], functools.partial(_images, pair, lengths[split])) for split, pair in files.items()]
    return of_arrays(name, images, joined, class_names, in_turn(lengths))


def _images(pair: dict[str, str], expected: int) -> np.ndarray:
    values = _array(pair["images"], 3)
    if len(values) != expected:
        raise ValueError(
            f"There must be one label per image. Received: {len(values):,} images in {pair['images']} and "
            f"{expected:,} labels in {pair['labels']}."
        )
    return values


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


def _array(path: str, dimensions: int) -> np.ndarray:
    """Read an array, after comparing the shape in its header with the size of the file."""
    size = tf.io.gfile.stat(path).length
    with _open(path) as file:
        head = _unpacked(path, file, 4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] != 8 or not 1 <= head[3] <= 4:
            raise ValueError(
                f"{path} is not an IDX file of bytes. Expected: a file that begins with 00 00 08 and the number of "
                f"dimensions. Received: {head.hex(' ') or 'an empty file'}."
            )
        header = _unpacked(path, file, 4 * head[3])
        if len(header) < 4 * head[3]:
            raise ValueError(f"{path} ends within its header.")
        shape = struct.unpack(f">{head[3]}I", header)
        if len(shape) != dimensions or 0 in shape:
            raise ValueError(
                f"{path} must hold an array of {dimensions} dimensions, none of them 0. Received: {list(shape)}."
            )
        length = 4 + len(header)
        if isinstance(file, gzip.GzipFile):
            check_expansion(path, size, length + math.prod(shape))
        elif size != length + math.prod(shape):
            raise _damaged(path, shape, length, f"{size:,}")
        data = _unpacked(path, file, math.prod(shape) + 1)
    if len(data) != math.prod(shape):
        raise _damaged(path, shape, length, "more" if len(data) > math.prod(shape) else f"{length + len(data):,}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _damaged(path: str, shape: tuple[int, ...], header: int, size: str) -> ValueError:
    return ValueError(
        f"{path} is damaged or incomplete: its header tells of {list(shape)} values, "
        f"{header + math.prod(shape):,} bytes with the "
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
