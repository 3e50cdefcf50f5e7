"""Features of many images, in parts that an interruption does not lose."""

import contextlib
import glob
import hashlib
import itertools
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from keras_vit.inference import image_batches
from keras_vit.inference.image_inputs import NamedImage
from keras_vit.inference.predictor import BATCH_SIZE, Predictor
from keras_vit.util import file_io
from keras_vit.util.progress import Progress
from keras_vit.version import __version__

PART_SIZE = 1024  # images


class Rows(NamedTuple):
    """Names `[n]` and features `[n, D]` or `[n, h, w, D]` of the readable images of a part."""

    names: np.ndarray
    features: np.ndarray


def state_of_file(path: str) -> tuple[int, ...]:
    """Return the size and the modification time of a file; an empty tuple if the file is missing."""
    try:
        info = os.stat(path)
    except OSError:
        return ()
    return info.st_size, info.st_mtime_ns


class FeatureParts:
    """Features of images, stored in a folder with a file for every `part_size` consecutive images.

    The key of a part identifies the weights, the preprocessing, the options and the images. A finished part with the
    same key is not computed again. Only one part is in memory.

    Args:
        folder: Folder of the parts.
        predictor: Predictor with features.
        part_size: Images per part.
        batch_size: Images per call of the model.
        dense: Whether to compute the features of each patch.
        state: Function from the name of an image to values that change if the content of the image changes.

    Attributes:
        files: Files of the parts that have rows, in order; complete after the last part.
        num_images: Number of images, including unreadable images.

    Example:
    >>> parts = FeatureParts("features.parts", keras_vit.open_predictor("runs/digits"))
    >>> for names, features in parts.rows(image_inputs.of_files(["images/cat.png"])):
    ...     print(names, features.shape)
    """

    def __init__(
        self,
        folder: str,
        predictor: Predictor,
        *,
        part_size: int = PART_SIZE,
        batch_size: int = BATCH_SIZE,
        dense: bool = False,
        state: Callable[[str], Sequence[Any]] = state_of_file,
    ):
        self.folder, self.predictor, self.state = folder, predictor, state
        self.part_size, self.batch_size, self.dense = part_size, batch_size, dense
        self.files: list[str] = []
        self.num_images = 0

    def rows(self, images: Iterable[NamedImage], total: int | None = None) -> Iterator[Rows]:
        """Yield the rows of each part that has a readable image, in order. `total` is the number of images, if known.

        Raises:
            ValueError: If the folder contains finished parts of another model, or with other options.
        """
        compute = self.predictor.patch_features if self.dense else self.predictor.features
        batches = image_batches.read(self._batches(images), self.predictor.card.preprocess)
        with contextlib.closing(batches), Progress("Features", total) as progress:
            for (start, key, count), group in itertools.groupby(batches, operator.attrgetter("group")):
                names, features = [], []
                for batch in group:
                    for name, row, error in batch.results(compute):
                        if row is None:
                            logging.error("%s: %s", name, error)
                        else:
                            names.append(name)
                            features.append(np.asarray(row, np.float32))
                    progress.add(len(batch.names))
                file = self._file(start)
                self.num_images = start + count
                if not key:
                    progress.add(count)
                elif names:
                    with file_io.atomic_file(file) as temporary, open(temporary, "wb") as stream:
                        np.savez(stream, names=np.array(names, np.str_), features=np.stack(features), key=key)
                if names or not key:
                    self.files.append(file)
                    yield read(file)

    def _file(self, start: int) -> str:
        return os.path.join(self.folder, f"{start:012d}.npz")

    def _batches(self, images: Iterable[NamedImage]) -> Iterator[tuple[tuple[int, str, int], Sequence[NamedImage]]]:
        """Yield the start, key and size of a part with each batch; no key and an empty batch for a finished part."""
        start = 0
        for chunk in image_batches.chunks(images, self.part_size):
            states = json.dumps([(image.name, *self.state(image.name)) for image in chunk])
            about = {
                "model": self.predictor.card.sha256,
                "preprocess": self.predictor.card.preprocess,
                "part_size": self.part_size,
                "dense": self.dense,
                "keras_vit": __version__,
                "images": hashlib.sha256(states.encode()).hexdigest(),
            }
            is_finished = _is_finished(self._file(start), about)
            part = start, "" if is_finished else json.dumps(about), len(chunk)
            for batch in [()] if is_finished else image_batches.chunks(chunk, self.batch_size):
                yield part, batch
            start += len(chunk)


def finished(folder: str) -> list[str]:
    """Return the files of the finished parts in a folder."""
    return glob.glob(os.path.join(glob.escape(folder), "*.npz"))


def read(file: str) -> Rows:
    """Return the rows of a part."""
    with np.load(file, allow_pickle=False) as content:
        return Rows(content["names"], content["features"])


def _is_finished(file: str, about: dict[str, Any]) -> bool:
    """Return whether the file of a part is complete and has this description.

    Raises a ValueError if only the images may be the same.
    """
    if not os.path.exists(file):
        return False
    try:
        with np.load(file, allow_pickle=False) as content:
            stored = json.loads(str(content["key"]))
        read(file)
    except Exception as error:  # NumPy and zipfile raise many kinds of errors for a damaged file
        stored = about | {"images": f"{file} is damaged: {error}"}
    different = [name for name, value in about.items() if stored[name] != value]
    if different not in ([], ["images"]):
        raise ValueError(
            f"{os.path.dirname(file)!r} contains the features of an interrupted call with other values of: "
            f"{', '.join(different)}. Remove it to start again, or pass another --output."
        )
    if different:
        logging.warning("%s has other images or is damaged. Its features are computed again.", file)
    return not different
