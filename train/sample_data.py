"""Write sample images: handwritten digits in a folder per class, or shapes with masks.

    keras-vit sample-data --output=images
    keras-vit sample-data --set=shapes --output=shapes

The folder contains train/CLASS/*.png and test/CLASS/*.png, for `keras-vit train folder:images`. For a regression,
list.csv contains the mean brightness of each image in percent: `manifest:images/list.csv#values=ink`.

The set `shapes` is for segmentation. The images of this set contain shapes and digits in random textures, each with an
ignored border. Open the set as `folder:shapes/images#masks=shapes/masks`, or as `manifest:shapes/list.csv`.
"""

import itertools
import os
import sys
from collections.abc import Sequence

from absl import flags

from keras_vit import cli
from keras_vit.cli import common_flags

common_flags.define_output_flag("Folder to write to.")
flags.DEFINE_enum("set", "digits", ["digits", "shapes"], "Images to write.")
flags.DEFINE_integer("count", None, "Maximum number of images per split; by default all images.", 1)

with cli.imports(__name__):
    import numpy as np
    import tensorflow as tf

    from keras_vit import data
    from keras_vit.data.readers import npz
    from keras_vit.inference import masks
    from keras_vit.util import file_io
    from keras_vit.util.progress import track

SHAPES = ("ground", "disk", "square", "triangle", "cross", "digit")
SIZE = 96
NUM_SHAPES = {"train": 400, "test": 100}  # images


@cli.published("output")
def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    if not options.output:
        raise ValueError("--output is missing: the folder to write to.")
    write = {"digits": write_digits, "shapes": write_shapes}[options.set]
    with file_io.atomic_directory(options.output) as directory:
        rows = write(directory, options.count)
        write_file(directory, "list.csv", "\n".join([*rows, ""]).encode())
    sys.stdout.write(f"{options.output}\n")
    return 0


def write_digits(directory: str, count: int | None) -> list[str]:
    """Write the digits and return the lines of their list."""
    images, labels, is_test = npz.load_digits()
    rows = ["path,label,ink,split"]
    for split, chosen in (("train", ~is_test), ("test", is_test)):
        pairs = zip(images[chosen], labels[chosen].tolist(), strict=True)
        for number, (image, label) in enumerate(track(itertools.islice(pairs, count), f"Writing {split}")):
            path = f"{split}/{label}/{number:04}.png"
            write_file(directory, path, tf.io.encode_png(image[..., None]).numpy())
            rows.append(f"{path},{label},{image.mean() / 2.55:.2f},{split}")
    return rows


def write_shapes(directory: str, count: int | None) -> list[str]:
    """Write shapes with their masks and the names of the classes, and return the lines of their list."""
    rows = ["path,mask,split"]
    for split, available in NUM_SHAPES.items():
        for number in track(range(min(available, count or available)), f"Drawing {split}"):
            image, mask = draw(split, number)
            path, mask_path = (f"{folder}/{split}/{number:04}.png" for folder in ("images", "masks"))
            write_file(directory, path, tf.io.encode_png(image).numpy())
            write_file(directory, mask_path, masks.to_png(mask))
            rows.append(f"{path},{mask_path},{split}")
    for folder in ("masks", "."):
        write_file(directory, f"{folder}/classes.txt", "\n".join([*SHAPES, ""]).encode())
    return rows


def draw(split: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw an image, uint8 `[H, W, 3]`, and its mask, uint8 `[H, W]`."""
    rng = np.random.default_rng([list(NUM_SHAPES).index(split), number])
    image, mask = texture(rng), np.zeros((SIZE, SIZE), np.uint8)
    for kind in rng.integers(1, len(SHAPES), rng.integers(2, 5)):
        inside = outline(rng, SHAPES[kind], split)
        moved = [np.roll(inside, step, axis) for axis in (0, 1) for step in (-1, 1)]
        image = np.where(inside[..., None], texture(rng), image)
        mask = np.where(np.logical_or.reduce(moved) | inside, data.IGNORED, mask)
        mask = np.where(np.logical_and.reduce(moved) & inside, kind, mask)
    noise = rng.normal(0, 8, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8), mask.astype(np.uint8)


def texture(rng: np.random.Generator) -> np.ndarray:
    """Return waves between two random colors, float `[H, W, 3]`."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    fy, fx = rng.uniform(-8, 8, (2, 3, 1, 1))
    waves = np.sin(2 * np.pi * (fy * y + fx * x + rng.uniform(size=(3, 1, 1)))).mean(axis=0)
    first, second = rng.uniform(0, 255, (2, 3))
    return first + (second - first) * (0.5 + 0.5 * waves[..., None])


def outline(rng: np.random.Generator, name: str, split: str) -> np.ndarray:
    """Return the pixels inside a shape or digit with random position, size and rotation, bool `[H, W]`."""
    radius, turn = rng.uniform(11, 22), rng.uniform(-np.pi, np.pi) * (name != "digit")
    y, x = (np.arange(SIZE) - center for center in rng.uniform(radius + 2, SIZE - radius - 2, 2))
    u = (np.cos(turn) * x + np.sin(turn) * y[:, None]) / radius
    v = (np.cos(turn) * y[:, None] - np.sin(turn) * x) / radius
    if name == "disk":
        return u**2 + v**2 < 1
    if name == "square":
        return np.maximum(abs(u), abs(v)) < 0.8
    if name == "triangle":
        return (v > -0.5) & (v + np.sqrt(3) * abs(u) < 1)
    if name == "cross":
        return (np.minimum(abs(u), abs(v)) < 0.3) & (np.maximum(abs(u), abs(v)) < 1)
    ink = random_digit(rng, split)
    for axis, position in enumerate((y / radius, x / radius)):  # [8, 8] -> [H, 8] -> [H, W]
        enlarged = [np.interp(4.5 * position + 3.5, range(8), line, 0, 0) for line in np.moveaxis(ink, axis, -1)]
        ink = np.stack(enlarged, axis=1 - axis)
    return ink > 100


def random_digit(rng: np.random.Generator, split: str) -> np.ndarray:
    """Return a random digit of a split, uint8 `[8, 8]`."""
    images, _, is_test = npz.load_digits()
    images = images[is_test == (split == "test")]
    return images[rng.integers(len(images))]


def write_file(directory: str, path: str, content: bytes) -> None:
    path = os.path.join(directory, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


if __name__ == "__main__":
    cli.run(main)
