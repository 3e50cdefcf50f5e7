"""WebDataset: tar files, where all files of an example have the same name up to the first period."""

import functools
import json
import os
import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_vit.data import separation
from keras_vit.data.labels import numbered
from keras_vit.data.python_ops import call_python
from keras_vit.data.readers import shards, tar
from keras_vit.data.readers.data_set import DataSet, of_files
from keras_vit.data.sources import FileSource, StoredSource, in_parallel
from keras_vit.data.splits import split_indices
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
    images: list[tar.Member] = []
    labels: list[str] = []
    splits: list[str] = []
    for split, paths in shards.by_split(location, ".tar").items():
        for found in in_parallel(functools.partial(_examples, label=label), paths):
            images += [image for image, _ in found]
            labels += [text for _, text in found]
            splits += [split] * len(found)
    name = f"webdataset:{location}"
    numbers, names = numbered(labels, class_names, name, lambda place: images[place].origin, label_offset)
    keys = [f"{os.path.basename(image.path)}/{image.name}" for image in images]
    is_divided = set(splits) == {"all"}
    indices = split_indices(separation.merged(keys, images) if is_divided else keys, numbers, test_fraction)
    if not is_divided:
        order = indices["all"]
        indices = {split: order[np.array(splits)[order] == split] for split in dict.fromkeys(splits)}
    return of_files(name, images, numbers, names, indices, source=TarSource)


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


class TarSource(FileSource):
    """Images in tar files."""

    def __init__(
        self,
        name: str,
        split: str,
        members: Sequence[tar.Member],
        labels: np.ndarray,
        names: Sequence[str],
        label_kind: str = "",
    ):
        super().__init__(name, split, np.arange(len(members)), labels, names, label_kind)
        self.files = members

    @property
    def paths(self) -> Sequence[str]:
        """Path of the tar file and name of each image."""
        return [member.origin for member in self.files]

    def fetch(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
        (image,) = call_python(lambda number: [self.files[int(number)].read()], [index], [tf.TensorSpec([], tf.string)])
        return {**StoredSource.fetch(self, index), "image": image}

    def origin(self, index: int) -> str:
        return self.files[index].origin
