"""Folders of images: with one subfolder per class, or without labels."""

import collections
import os
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from keras_vit.data import separation, splits
from keras_vit.data.readers import mask_folders
from keras_vit.data.readers.data_set import DataSet, of_files
from keras_vit.data.splits import NAMES
from keras_vit.util import checks
from keras_vit.util.image_files import EXTENSIONS, Tree


def read(
    location: str,
    test_fraction: float = 0.2,
    masks: str | None = None,
    classes: mask_folders.Classes = None,
    label_offset: int = 0,
    foreground: int | None = None,
) -> DataSet:
    """Return the images of a folder with one subfolder per class, or with such folders in `train`, `val` and `test`.

    If there is only one set of class folders, a hash of the file names divides each class into "train" and "test".
    `masks` is a folder with a mask for each image. In this case, there are no class folders. `classes` are the classes
    of the masks; by default, the classes are read from `classes.txt` in the folder of masks.
    """
    if masks is not None:
        return mask_folders.read(location, str(masks), classes, label_offset, foreground, test_fraction)
    tree = Tree(location)
    if not tf.io.gfile.isdir(tree.root):
        if tf.io.gfile.exists(tree.root):
            raise ValueError(
                f"A folder is expected. Received: the file {tree.root!r}. Unpack an archive first. A list of images, "
                f".csv or .jsonl, opens as manifest:{location}."
            )
        raise FileNotFoundError(f"There is no folder {location!r}.")
    roots, notes = _splits(tree)
    files, about_files = _images(tree, roots)
    notes += about_files
    class_names = sorted(files["train"])
    if len(class_names) < 2:
        inner = [f"If its folders are classes or splits, pass folder:{tree.root}/{name}." for name in class_names]
        raise ValueError(
            f"Images of two or more classes are expected, one folder per class, such as {tree.root}/cat/1.jpg "
            f"and {tree.root}/dog/1.jpg. Received: {f'one class, {class_names[0]!r}' if class_names else 'no image'} "
            f"in {tree.root}. {' '.join([*inner, *notes, f'For a task without labels, use images:{tree.root}.'])}"
        )
    paths: list[str] = []
    labels: list[np.ndarray] = []
    indices: dict[str, np.ndarray] = {}
    for split, by_class in files.items():
        numbers = checks.class_numbers(list(by_class), class_names)
        unknown = sorted(name for name, number in zip(by_class, numbers, strict=True) if number < 0)
        if unknown:
            raise ValueError(
                f"Every class must have training images. {tree.root} has no training folder for {unknown}, which the "
                f"split {split!r} contains."
            )
        keys = [key for some in by_class.values() for key in some]
        own = np.repeat(numbers.astype(np.int32), list(map(len, by_class.values())))
        located = [f"{roots[split]}/{key}" for key in keys]
        names = separation.merged(keys, located) if len(files) == 1 else keys
        divided = splits.split_indices(names, own, test_fraction if len(files) == 1 else 0.0)
        for key, order in divided.items() if len(files) == 1 else ((split, divided["all"]),):
            indices[key] = len(paths) + order
        paths += located
        labels.append(own)
    joined = np.concatenate(labels)
    return of_files(f"folder:{location}", paths, joined, class_names, indices, tuple(notes))


def read_unlabeled(location: str, test_fraction: float = 0.2) -> DataSet:
    """Return the images of a folder for tasks without labels. There are no classes, and every label is 0."""
    tree = Tree(location)
    if not tf.io.gfile.isdir(tree.root):
        raise FileNotFoundError(f"There is no folder {location!r}.")
    keys = sorted(path for path in tree.below(tree.root) if path.lower().endswith(EXTENSIONS))
    if not keys:
        raise ValueError(f"Images ({', '.join(EXTENSIONS)}) are expected in {location} or its subfolders. Found none.")
    labels = np.zeros(len(keys), np.int32)
    paths = [f"{tree.root}/{key}" for key in keys]
    indices = splits.split_indices(separation.merged(keys, paths), labels, test_fraction)
    return of_files(f"images:{location}", paths, labels, (), indices)


def _splits(tree: Tree) -> tuple[dict[str, str], list[str]]:
    """Return the folder of each split. Without folders of splits, the root is "train"."""
    folders = tree.folders(tree.root)
    named: dict[str, str] = {}
    for name in folders:
        if name.lower() in NAMES:
            named.setdefault(NAMES[name.lower()], name)
    with_classes = {split: name for split, name in named.items() if tree.folders(f"{tree.root}/{name}")}
    if "train" not in with_classes:
        if with_classes and len(named) == len(folders):
            name = next(iter(with_classes.values()))
            raise ValueError(
                f"Expected train/ with a folder per class next to {name}/ in {tree.root}. To use {name}/ by itself, "
                f"pass folder:{tree.root}/{name}."
            )
        return {"train": tree.root}, []
    notes = []
    train = f"{tree.root}/{with_classes['train']}"
    for name in named.values():
        if name not in with_classes.values():
            notes.append(f"{name}/ has no folders of classes and is not used.")
    others = [name for name in folders if name not in named.values()]
    doubtful = [name for name in others if len(with_classes) == 1 or name.lower() in NAMES]
    doubtful = [name for name in doubtful if _only_images(tree.below(f"{tree.root}/{name}"))]
    if doubtful:
        raise ValueError(
            f"{train} has folders of classes, so only one folder for each other split may have images next to it. "
            f"Received: {checks.listed(doubtful)}. If {with_classes['train']}/ is a class, rename it. If it is a "
            f"split, pass folder:{train} or move the other folders away."
        )
    if others:
        notes.append(f"Folders next to {with_classes['train']}/ are not used: {checks.listed(others)}.")
    if len(with_classes) == 1:
        notes.append(f"There is neither test/ nor val/: a part of each class in {train} is kept for testing.")
    elif "test" not in with_classes:
        notes.append(f"{with_classes['validation']}/ is also the split 'test': test/ is missing.")
    return {split: f"{tree.root}/{name}" for split, name in with_classes.items()}, notes


def _images(tree: Tree, roots: Mapping[str, str]) -> tuple[dict[str, dict[str, list[str]]], list[str]]:
    """Return the paths of the images by split and class, relative to the folder of the split, and notes."""
    folders = [(split, name) for split, root in roots.items() for name in tree.folders(root)]
    if not folders:
        example = next(iter(tree.files(tree.root)), None)
        raise ValueError(
            f"A folder with one subfolder per class is expected, as in {tree.root}/cat/1.jpg. Received: "
            f"{f'a folder without subfolders, with images such as {example!r}' if example else 'an empty folder'}."
        )
    images: dict[str, dict[str, list[str]]] = {split: {} for split in roots}
    others: collections.Counter[str] = collections.Counter()
    empty, joined = [], []
    for split, name in folders:
        path = f"{roots[split]}/{name}"
        files = tree.below(path)
        chosen = sorted(_only_images(files))
        others.update(_extension(file) for file in files if not file.lower().endswith(EXTENSIONS))
        if chosen:
            known = images[split].setdefault(checks.composed(name), [])
            joined += [path] if known else []
            known += [f"{name}/{file}" for file in chosen]
        elif path not in tree.skipped:
            empty.append(path)
    stray = [f"{root}/{file}" for root in {tree.root, *roots.values()} for file in _only_images(tree.files(root))]
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in others.most_common())
    found = {
        "Folders without images are left out": empty,
        "Images next to the folders of the classes are not used": sorted(stray),
        "Folders whose names only differ in their Unicode form are one class": joined,
        "Links to folders of the data set, around it or at the top of the disk, and pipes are skipped": [*tree.skipped],
        "Folders of file servers and operating systems are not read": list(tree.system),
    }
    notes = [f"{text}: {checks.listed(names)}." for text, names in found.items() if names]
    if kinds:
        notes.append(f"Files of other types are not used: {kinds}. Convert images to JPEG or PNG.")
    inner = [{"".join(file.split("/")[1:-1][:1]) for file in files} for files in images["train"].values()]
    if len(inner) > 1 and len(inner[0]) > 1 and "" not in inner[0] and all(names == inner[0] for names in inner):
        names = ", ".join(f"{name}/" for name in images["train"])
        notes.append(f"The classes {names} have the same subfolders. If they are splits, call them train/ and test/.")
    return images, notes


def _only_images(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if path.lower().endswith(EXTENSIONS)]


def _extension(path: str) -> str:
    return os.path.splitext(path)[1].lower() or "without an extension"
