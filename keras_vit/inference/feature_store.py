"""Features of images, in the files of a folder that an interruption does not lose."""

import contextlib
import glob
import hashlib
import itertools
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
ORIGIN = "origin"  # name of the result of `origin` in a file of features

Arrays = dict[str, np.ndarray]


class FeatureStore:
    """Numbered parts of arrays in a folder. A part that was computed for the same description is read from its file.

    Args:
        folder: Folder of the parts, or None to keep nothing.
        about: Description of everything that determines the arrays: weights, preprocessing and options, as JSON.
        replaces: Whether parts with another description are computed again. Otherwise, they raise an error.

    Attributes:
        computed: Number of parts that were computed, and not read.

    Example:
    >>> store = FeatureStore("features", {"weights": "sha256", "preprocess": "value_range(-1, 1)"})
    >>> store.part(0, lambda: {"features": np.zeros([2, 8])})["features"].shape
    (2, 8)
    """

    def __init__(self, folder: str | None, about: Mapping[str, Any], replaces: bool = True):
        self.folder, self.replaces, self.computed = folder, replaces, 0
        self.about = {**about, "keras_vit": __version__}

    def part(self, number: int, compute: Callable[[], Arrays], images: Any = None) -> Arrays:
        """Return the arrays of a part from its file, or compute them and write the file.

        `images` describes the images of the part, as JSON. A part with other images is always computed again.
        """
        if self.folder is None:
            return compute()
        found = self.find(number, images)
        if found is None:
            found, self.computed = compute(), self.computed + 1
            self.write(number, found, images)
        return found

    def path(self, number: int) -> str:
        """Return the path of the file of a part."""
        return os.path.join(self.folder or "", f"{number:09d}.npz")

    def find(self, number: int, images: Any = None) -> Arrays | None:
        """Return the arrays of a part from its file; None if the part must be computed.

        Raises:
            ValueError: If the folder contains parts with another description, and `replaces` is False.
        """
        path = self.path(number)
        if not os.path.exists(path):
            return None
        expected = json.loads(self._key(images))
        try:
            arrays = _load(path)
            stored = json.loads(str(arrays.pop("key")))
            different = [name for name, value in expected.items() if stored.get(name) != value]
        except Exception as error:  # NumPy and zipfile raise many kinds of errors for a damaged file
            logging.warning("%s is damaged and is computed again: %s", path, error)
            return None
        if not self.replaces and different not in ([], ["images"]):
            raise ValueError(
                f"{self.folder!r} contains the features of an interrupted call with other values of: "
                f"{', '.join(different)}. Remove it to start again, or choose another output."
            )
        if different:
            logging.info("%s has other values of: %s. It is computed again.", path, ", ".join(different))
        return None if different else arrays

    def write(self, number: int, arrays: Arrays, images: Any = None) -> None:
        """Write the file of a part."""
        with file_io.atomic_file(self.path(number)) as temporary, open(temporary, "wb") as file:
            np.savez(file, **{"key": np.array(self._key(images)), **arrays})  # type: ignore[arg-type]

    def _key(self, images: Any) -> str:
        return json.dumps({**self.about, "images": images})


def origin(predictor: Predictor) -> str:
    """Return the model and the preprocessing that determine the features, as JSON."""
    return json.dumps({"model": predictor.card.sha256, "preprocess": predictor.card.preprocess})


class Rows(NamedTuple):
    """Names `[n]` and features `[n, D]` or `[n, h, w, D]` of the readable images of a part."""

    names: np.ndarray
    features: np.ndarray


class FeatureParts:
    """Features of images, in a `FeatureStore` with a part for every `part_size` consecutive images.

    The description of a part contains the weights, the preprocessing, the options and the images. Only one part is in
    memory.

    Args:
        folder: Folder of the parts.
        predictor: Predictor with features.
        part_size: Images per part.
        batch_size: Images per call of the model.
        dense: Whether to compute the features of each patch.

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
    ):
        about = {
            "model": predictor.card.sha256,
            "preprocess": predictor.card.preprocess,
            "part_size": part_size,
            "dense": dense,
        }
        self.store, self.predictor = FeatureStore(folder, about, replaces=False), predictor
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
            for (start, count, digest), group in itertools.groupby(batches, operator.attrgetter("group")):
                names, features = [], []
                for batch in group:
                    for name, row, error in batch.results(compute):
                        if row is None:
                            logging.error("%s: %s", name, error)
                        else:
                            names.append(name)
                            features.append(np.asarray(row, np.float32))
                    progress.add(len(batch.names))
                self.num_images = start + count
                if not digest:
                    progress.add(count)
                elif names:
                    arrays = {"names": np.array(names, np.str_), "features": np.stack(features)}
                    self.store.write(start, arrays, digest)
                if names or not digest:
                    self.files.append(self.store.path(start))
                    yield read(self.files[-1])

    def _batches(self, images: Iterable[NamedImage]) -> Iterator[tuple[tuple[int, int, str], Sequence[NamedImage]]]:
        """Yield start, size and digest of a part with each batch; no digest and an empty batch for a finished part."""
        start = 0
        for chunk in image_batches.chunks(images, self.part_size):
            states = json.dumps([(image.name, *_state_of_file(image.name)) for image in chunk])
            digest = hashlib.sha256(states.encode()).hexdigest()
            if self.store.find(start, digest) is None:
                for batch in image_batches.chunks(chunk, self.batch_size):
                    yield (start, len(chunk), digest), batch
            else:
                yield (start, len(chunk), ""), ()
            start += len(chunk)


def finished(folder: str) -> list[str]:
    """Return the files of the finished parts in a folder."""
    return glob.glob(os.path.join(glob.escape(folder), "*.npz"))


def read(file: str) -> Rows:
    """Return the rows of a part."""
    arrays = _load(file)
    return Rows(arrays["names"], arrays["features"])


def _load(path: str) -> Arrays:
    with np.load(path, allow_pickle=False) as content:
        return {name: content[name] for name in content.files}


def _state_of_file(path: str) -> tuple[int, ...]:
    """Return the size and the modification time of a file; an empty tuple if the file is missing."""
    try:
        info = os.stat(path)
    except OSError:
        return ()
    return info.st_size, info.st_mtime_ns
