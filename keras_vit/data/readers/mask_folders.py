"""Folders of images with a parallel folder of masks: one PNG per image, with the same name."""

import collections
import functools
import posixpath
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data import separation, splits
from keras_vit.data.masks import MAX_CLASSES
from keras_vit.data.readers.data_set import DataSet, of_files
from keras_vit.data.sources import MaskFileSource
from keras_vit.data.splits import NAMES
from keras_vit.util import checks, file_io
from keras_vit.util.image_files import EXTENSIONS, Tree

CLASSES_FILE = "classes.txt"
Classes = int | str | Sequence[str] | None


def read(
    location: str, masks: str, classes: Classes, label_offset: int, foreground: int | None, test_fraction: float
) -> DataSet:
    """Return the images of a folder with their masks, which have the same names in the folder `masks`.

    Both folders have subfolders for the splits, such as `train` and `val`. Without these subfolders, a hash of the file
    names chooses the images of "test".
    """
    images, drawn = trees = Tree(location), Tree(masks)
    for tree in trees:
        if not tf.io.gfile.isdir(tree.root):
            raise FileNotFoundError(f"There is no folder {tree.root!r}.")
    names = class_names(classes, drawn.root)
    folders = _splits(images, drawn)
    paths: list[str] = []
    mask_paths: list[str] = []
    indices: dict[str, np.ndarray] = {}
    missing: list[str] = []
    unused: list[str] = []
    others: list[str] = []
    for split, (folder, mask_folder) in folders.items():
        keys = sorted(key for key in images.below(folder) if key.lower().endswith(EXTENSIONS))
        keys = [key for key in keys if not f"{folder}/{key}".startswith(f"{drawn.root}/")]
        stems = [posixpath.splitext(key)[0] for key in keys]
        twice = [stem for stem, count in collections.Counter(stems).items() if count > 1]
        if twice:
            raise ValueError(
                f"Images in {folder} must differ in more than their extension. Received: {checks.listed(twice)}."
            )
        below = drawn.below(mask_folder)
        files = {posixpath.splitext(key)[0]: key for key in below if key.lower().endswith(".png")}
        known = {stem for stem in stems if stem not in files}
        others += [f"{mask_folder}/{key}" for key in below if posixpath.splitext(key)[0] in known]
        missing += [f"{folder}/{key}" for key, stem in zip(keys, stems, strict=True) if stem not in files]
        unused += [f"{mask_folder}/{files[stem]}" for stem in sorted(set(files).difference(stems))]
        located = [f"{folder}/{key}" for key in keys]
        same = separation.merged(keys, located) if len(folders) == 1 else keys
        divided = splits.split_indices(same, np.zeros(len(keys)), test_fraction if len(folders) == 1 else 0.0)
        for key, order in divided.items() if len(folders) == 1 else ((split, divided["all"]),):
            indices[key] = len(paths) + order
        paths += located
        mask_paths += [f"{mask_folder}/{files.get(stem, f'{stem}.png')}" for stem in stems]
    if len(missing) == len(paths):
        example = f"{mask_paths[0]} for {paths[0]}" if paths else f"{drawn.root}/1.png for {images.root}/1.jpg"
        raise ValueError(
            f"Images and masks of the same names are expected, such as {example}. Received: {len(paths):,} images in "
            f"{images.root}, none of them with a mask, and {len(unused):,} other PNG files in {drawn.root}."
            f"{f' Convert other formats to PNG: {checks.listed(others)}.' if others else ''}"
        )
    found = {
        "Images without a mask cannot be read": missing,
        "Masks without an image are not used": unused,
        "Masks must be PNG files. Other formats are not used": others,
    }
    notes = tuple(f"{text}: {checks.listed(some)}." for text, some in found.items() if some)
    column = np.array(mask_paths, object)
    return of_pairs(f"folder:{location}", paths, column, names, label_offset, foreground, indices, notes)


def _splits(images: Tree, drawn: Tree) -> dict[str, tuple[str, str]]:
    """Return the folders of images and masks by split. Without folders of splits, the roots are "train"."""
    named, masks = (
        {NAMES[name.lower()]: f"{tree.root}/{name}" for name in tree.folders(tree.root) if name.lower() in NAMES}
        for tree in (images, drawn)
    )
    if "train" not in named:
        return {"train": (images.root, drawn.root)}
    if not set(named) <= set(masks):
        raise ValueError(
            f"The masks need the folders of the images, {', '.join(named.values())}. "
            f"Received: {', '.join(masks.values()) or 'none'} in {drawn.root}."
        )
    return {split: (folder, masks[split]) for split, folder in named.items()}


def class_names(classes: Classes, folder: str | None = None) -> list[str]:
    """Return the names of the classes of masks: the option `classes`, or the lines of `classes.txt` in `folder`."""
    path = posixpath.join(folder or "", CLASSES_FILE)
    names: Sequence[str]
    if isinstance(classes, int):
        names = [str(number) for number in range(min(checks.positive_int("classes", classes), MAX_CLASSES + 1))]
    elif classes is not None:
        names = classes.split(",") if isinstance(classes, str) else checks.sequence("classes", classes, "names")
    elif folder is not None and tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path, "rb") as file:
            names = file_io.decode_text(file.read(), path).strip().splitlines()
    else:
        file = f", or write them to {path}, one per line" if folder is not None else ""
        raise ValueError(
            "The classes of the masks are unknown. Pass their number or names, in order of the indices, as classes=, "
            f"such as #classes=21 or #classes=sky,tree{file}."
        )
    names = [str(name).strip() for name in names]
    if not all(names) or not 0 < len(set(names)) == len(names) <= MAX_CLASSES:
        raise ValueError(
            f"Masks need 1 to {MAX_CLASSES:,} classes with different names. "
            f"Received: {len(names)} names from {path if classes is None else 'classes='}, {str(names)[:200]}."
        )
    return names


def of_pairs(
    name: str,
    paths: Sequence[str],
    mask_paths: np.ndarray,
    names: Sequence[str],
    label_offset: int,
    foreground: int | None,
    indices: dict[str, np.ndarray],
    notes: tuple[str, ...],
) -> DataSet:
    """Return a data set of image files and mask files."""
    if foreground is not None:
        checks.positive_int("foreground", foreground)
    source = functools.partial(MaskFileSource, offset=label_offset, foreground=foreground)
    return of_files(name, paths, mask_paths, names, indices, notes, "mask", source)
