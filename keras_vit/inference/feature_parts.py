"""Features of many images, in parts that an interruption does not lose."""

import contextlib
import dataclasses
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
DESCRIPTION = "parts.json"


class Rows(NamedTuple):
    """Names `[n]` and features `[n, D]` or `[n, h, w, D]` of the readable images of a part."""

    names: np.ndarray
    features: np.ndarray


@dataclasses.dataclass(eq=False)
class _Part:
    file: str
    key: str
    num_images: int
    is_finished: bool


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
            ValueError: If the folder contains finished parts of another model, or if its first part has other images.
        """
        compute = self.predictor.patch_features if self.dense else self.predictor.features
        batches = image_batches.read(self._batches(images), self.predictor.card.preprocess)
        with contextlib.closing(batches), Progress("Features", total) as progress:
            for part, group in itertools.groupby(batches, operator.attrgetter("group")):
                names, features = [], []
                for batch in group:
                    for name, row, error in batch.results(compute):
                        if row is None:
                            logging.error("%s: %s", name, error)
                            continue
                        names.append(name)
                        features.append(np.asarray(row, np.float32))
                    progress.add(len(batch.names))
                if part.is_finished:
                    rows = read(part.file)
                    progress.add(part.num_images)
                elif names:
                    rows = Rows(np.array(names, np.str_), np.stack(features))
                    with file_io.atomic_file(part.file) as temporary, open(temporary, "wb") as file:
                        np.savez(file, **rows._asdict(), key=part.key)
                else:
                    continue
                self.files.append(part.file)
                yield rows

    def _batches(self, images: Iterable[NamedImage]) -> Iterator[tuple[_Part, Sequence[NamedImage]]]:
        """Yield the batches of the parts to compute, and an empty batch for a finished part."""
        about = ""
        for chunk in image_batches.chunks(images, self.part_size):
            states = _digest([(image.name, *self.state(image.name)) for image in chunk])
            about = about or self.begin(states)
            file, key = os.path.join(self.folder, f"{self.num_images:012d}.npz"), f"{about} {states} {self.num_images}"
            part = _Part(file, key, len(chunk), os.path.exists(file) and _is_finished(file, key))
            self.num_images += len(chunk)
            batches = image_batches.chunks(() if part.is_finished else chunk, self.batch_size)
            yield from ((part, batch) for batch in batches)
            if part.is_finished:
                yield part, ()

    def begin(self, first: str) -> str:
        """Write the description of the parts into the folder, and return its key. `first` is a key of the first part.

        Raises a ValueError if the folder contains finished parts with another description.
        """
        about: dict[str, Any] = {
            "model": self.predictor.card.sha256,
            "preprocess": self.predictor.card.preprocess,
            "part_size": self.part_size,
            "dense": self.dense,
            "keras_vit": __version__,
        }
        described, path = {**about, "images": first}, os.path.join(self.folder, DESCRIPTION)
        before: dict[str, Any] = described
        if finished(self.folder):
            with contextlib.suppress(OSError, ValueError):  # without it, the key of each part is compared
                before = file_io.read_json(path)
        different = [name for name, value in described.items() if before.get(name) != value]
        if different:
            raise ValueError(
                f"{self.folder!r} contains the features of an interrupted call with other values of: "
                f"{', '.join(different)}. Remove it to start again, or pass another --output."
            )
        if finished(self.folder):
            logging.info("Resuming from %s", self.folder)
        file_io.write_json(path, described)
        return _digest(about)


def finished(folder: str) -> list[str]:
    """Return the files of the finished parts in a folder."""
    return glob.glob(os.path.join(glob.escape(folder), "*.npz"))


def read(file: str) -> Rows:
    """Return the rows of a part."""
    with np.load(file, allow_pickle=False) as content:
        return Rows(content["names"], content["features"])


def _is_finished(file: str, key: str) -> bool:
    """Return whether the file of a part is complete and has this key."""
    try:
        with np.load(file, allow_pickle=False) as content:
            if str(content["key"]) == key:
                read(file)
                return True
    except Exception as error:  # NumPy and zipfile raise many kinds of errors for a damaged file
        logging.warning("%s is damaged: %s", file, error)
    logging.warning("The features of %s are computed again.", file)
    return False


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
