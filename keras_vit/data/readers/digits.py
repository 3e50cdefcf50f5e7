"""The 1,797 handwritten digits in this package. `assets/README.md` states their source."""

import pathlib

import numpy as np

from keras_vit.data.readers.data_set import DataSet, of_arrays

NAME = "digits"
ASSET = pathlib.Path(__file__).parent.parent / "assets" / "digits.npz"


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images, uint8 `[1797, 8, 8]`; labels, int32 `[1797]`; and whether each is a test image, bool `[1797]`."""
    with np.load(ASSET, allow_pickle=False) as file:
        # The published values are amounts of ink from 0 to 16.
        images = np.round(file["images"] * (255 / 16)).astype(np.uint8)
        return images, file["labels"].astype(np.int32), file["is_test"]


def read(location: str = "") -> DataSet:
    """Return the digits: "train" (1,437 examples) and "test" (360)."""
    if location:
        raise ValueError(f"'digits' takes no path. Received: 'digits:{location}'.")
    images, labels, is_test = load()
    indices = {"train": np.flatnonzero(~is_test), "test": np.flatnonzero(is_test)}
    return of_arrays(NAME, [(len(images), lambda: images)], labels, [str(digit) for digit in range(10)], indices)
