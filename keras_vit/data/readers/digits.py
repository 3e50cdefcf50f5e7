"""The 1,797 handwritten digits of this package. Their source is in `assets/README.md`."""

import pathlib

import numpy as np

from keras_vit.data import splits
from keras_vit.data.sources import ArraySource, select

NAME = "digits"
ASSET = pathlib.Path(__file__).parent.parent / "assets" / "digits.npz"


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images, uint8 `[1797, 8, 8]`; labels, int32 `[1797]`; and whether each is for testing, bool `[1797]`."""
    with np.load(ASSET, allow_pickle=False) as file:
        # The published values count ink from 0 to 16.
        images = np.round(file["images"] * (255 / 16)).astype(np.uint8)
        return images, file["labels"].astype(np.int32), file["is_test"]


def sizes(location: str = "") -> dict[str, int]:
    """Return the number of examples of each split."""
    return {key: len(value) for key, value in _indices(load()[2]).items()}


def open_source(location: str = "", split: str = "train") -> ArraySource:
    """Open the digits: "train" (1,437 examples) and "test" (360)."""
    if location:
        raise ValueError(f"'digits' takes no path. Received: 'digits:{location}'.")
    images, labels, is_test = load()
    indices = _indices(is_test)
    chosen = select(splits.parse(split, {key: len(value) for key, value in indices.items()}, NAME), indices)
    return ArraySource(NAME, split, images[chosen], labels[chosen], [str(digit) for digit in range(10)])


def _indices(is_test: np.ndarray) -> dict[str, np.ndarray]:
    return {"train": np.flatnonzero(~is_test), "test": np.flatnonzero(is_test)}
