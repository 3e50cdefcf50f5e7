"""Arrays that are computed once from images, such as features, and kept in the files of a folder."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from absl import logging

from keras_vit.util import file_io
from keras_vit.version import __version__

Arrays = dict[str, np.ndarray]


class FeatureStore:
    """Numbered parts of arrays in a folder. A part that was computed for the same description is read from its file.

    Args:
        folder: Folder of the parts, or None to keep nothing.
        about: Description of everything that determines the arrays: weights, preprocessing and images, as JSON.

    Attributes:
        computed: Number of parts that were computed, and not read.

    Example:
    >>> store = FeatureStore("features", {"weights": "sha256", "preprocess": "value_range(-1, 1)"})
    >>> store.part(0, lambda: {"features": np.zeros([2, 8])})["features"].shape
    (2, 8)
    """

    def __init__(self, folder: str | None, about: Mapping[str, Any]):
        self.folder, self.computed = folder, 0
        self.key = hashlib.sha256(json.dumps({**about, "keras_vit": __version__}).encode()).hexdigest()

    def part(self, number: int, compute: Callable[[], Arrays]) -> Arrays:
        """Return the arrays of a part from its file, or compute them and write the file."""
        if self.folder is None:
            return compute()
        path = os.path.join(self.folder, f"{number:09d}.npz")
        found = self._read(path) if os.path.exists(path) else None
        if found is None:
            found, self.computed = compute(), self.computed + 1
            with file_io.atomic_file(path) as temporary, open(temporary, "wb") as file:
                np.savez(file, **{"key": np.array(self.key), **found})  # type: ignore[arg-type]
        return found

    def _read(self, path: str) -> Arrays | None:
        """Return the arrays of a file, or None if it is damaged or has another description."""
        try:
            with np.load(path, allow_pickle=False) as content:
                if str(content["key"]) == self.key:
                    return {name: content[name] for name in content.files if name != "key"}
        except Exception as error:  # NumPy and zipfile raise many kinds of errors for a damaged file
            logging.warning("%s is damaged and computed again: %s", path, error)
        return None
