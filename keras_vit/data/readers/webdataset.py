"""WebDataset: tar files, where all files of an example have the same name up to the first period."""

import functools
import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data import separation, splits
from keras_vit.data.grouped import GroupedSource
from keras_vit.data.labels import numbered
from keras_vit.data.readers import shards, tar, tar_index
from keras_vit.data.readers.data_set import DataSet, of_files
from keras_vit.data.sources import FileSource, StoredSource, in_parallel
from keras_vit.util import checks, file_io
from keras_vit.util.image_files import EXTENSIONS

_NAME = re.compile(r"(?P<key>(?:.*/)?[^./][^./]*)\.(?P<extension>[^/]*)", re.DOTALL)
_MAX_LABEL = 2**20  # bytes


def read(
    location: str,
    label: str | None = None,
    class_names: list[str] | None = None,
    test_fraction: float = 0.2,
    label_offset: int = 0,
) -> DataSet:
    """Return the images in tar files. `location` is a folder, a pattern, or a path with braces such as `{000..015}`.

    An example consists of an image `KEY.jpg`, or another format, and a label: the text of `KEY.cls`, or the entry
    "label" of the object in `KEY.json`. `label` sets another name for the entry. In this case, `KEY.cls` is not
    used.
    """
    files = shards.by_split(location, ".tar")
    paths = [path for of_split in files.values() for path in of_split]
    found = list(in_parallel(functools.partial(tar_index.read, label=label, examples=_examples), paths))
    images = tar_index.Members.of(paths, found)
    name = f"webdataset:{location}"
    numbers, names = _class_numbers(found, class_names, name, images, label_offset)
    is_divided = set(files) == {"all"}
    keys = images.hashes
    if is_divided and len(images) <= separation.MOST_FILES:
        keys = splits.hashes(separation.merged([tar_index.key_of(path, name) for path, name, *_ in images], images))
    indices = splits.split_indices(keys, numbers, test_fraction)
    if not is_divided:
        split_of = np.repeat(np.arange(len(files)), list(map(len, files.values())))[images.files]
        order = indices["all"]
        indices = {split: order[split_of[order] == number] for number, split in enumerate(files)}

    def source(name: str, split: str, chosen: np.ndarray, *labels_and_names: Any) -> TarSource:
        return TarSource(name, split, images.at(chosen), *labels_and_names)

    return of_files(name, np.arange(len(images)), numbers, names, indices, source=source)


def _class_numbers(
    found: Sequence[tar_index.Index],
    class_names: list[str] | None,
    name: str,
    images: Sequence[tar.Member],
    label_offset: int,
) -> tuple[np.ndarray, list[str]]:
    """Return the class number of each image, int32 `[n]`, and the names of the classes."""
    texts = {text: number for number, text in enumerate(dict.fromkeys(text for index in found for text in index.texts))}
    codes = [np.array([texts[text] for text in index.texts])[index.rows[:, -1]] for index in found]
    of_image, firsts = np.concatenate(codes), np.zeros(len(texts), np.int64)
    firsts[of_image[::-1]] = np.arange(len(of_image))[::-1]
    origin = lambda number: images[int(firsts[number])].origin  # noqa: E731
    numbers, names = numbered(list(texts), class_names, name, origin, label_offset)
    return numbers[of_image], names


def _examples(path: str, label: str | None) -> list[tuple[tar.Member, str]]:
    """Return the images in a tar file with their labels."""
    groups: dict[str, dict[str, tar.Member]] = {}
    for member in tar.members(path):
        if match := _NAME.fullmatch(member.name):  # no match: a hidden file
            extension = match["extension"].lower()
            kind = "image" if f".{extension}" in EXTENSIONS else extension
            if groups.setdefault(match["key"], {}).setdefault(kind, member) != member:
                raise ValueError(f"{path} must have one {kind} for each example. Received: several for {match['key']}.")
    if not groups:
        raise ValueError(f"{path} contains no examples. Copy or write it again, or remove it.")
    for key, group in groups.items():
        if "image" not in group:
            kinds = ", ".join(EXTENSIONS)
            raise ValueError(
                f"Every example of {path} must have an image, {kinds}. Received: {key} with {list(group)}."
            )
    return [(group["image"], _label(path, key, group, label)) for key, group in groups.items()]


def _label(path: str, key: str, group: dict[str, tar.Member], name: str | None) -> str:
    """Return the label of an example in text form."""
    kind = "cls" if name is None and "cls" in group else "json"
    name, value = name or "label", None
    if kind in group and group[kind].size <= _MAX_LABEL:
        text = file_io.decode_text(group[kind].read(), group[kind].origin).strip()
        try:
            value = text if kind == "cls" else json.loads(text)[name]
        except (ValueError, RecursionError, KeyError, TypeError):
            value = None
    if value == "" or isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(
            f"Every example of {path} must have a label: a class number or name in {key}.cls, or in the entry {name!r} "
            f"of {key}.json. Received: {str(value)[:100] if value else f'files {list(group)}'}."
        )
    return checks.composed(str(value))


class TarSource(GroupedSource, FileSource):
    """Images in tar files."""

    files: tar_index.Members

    def __init__(
        self,
        name: str,
        split: str,
        members: tar_index.Members,
        labels: np.ndarray,
        names: Sequence[str],
        label_kind: str,
    ):
        super().__init__(name, split, np.arange(len(members)), labels, names, label_kind)
        self.files = members

    @property
    def paths(self) -> Sequence[str]:
        """Path of the tar file and name of each image."""
        return [member.origin for member in self.files]

    def read_rows(self, indices: np.ndarray) -> list[bytes]:
        return self.files.read(indices)

    def example(self, index: tf.Tensor, content: tf.Tensor) -> dict[str, tf.Tensor]:
        return {**StoredSource.fetch(self, index), "image": content}

    def origin(self, index: int) -> str:
        return self.files[index].origin
