"""Separation of training images from images that choose and test: an image is never on both sides.

Two images are the same if their paths, the bytes of their files, or their pixels in memory are the same.
"""

import collections
import functools
import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.data import splits
from keras_vit.data.sources import ArraySource, FileSource, Source, StoredSource, in_parallel
from keras_vit.util import checks, file_io
from keras_vit.util.progress import Progress, track

MOST_FILES = 50_000  # of more files, only the paths are compared


def part(source: Source, name: str, split: str) -> Source:
    """Return the part `"validation"` or `"fit"` of a source as the split `split`.

    Images in files and in memory are divided by class, and the same images are in the same part. The part of an image
    depends on a hash of its relative path or pixels. Of records, every seventh is in `"validation"`.
    """
    if not isinstance(source, StoredSource):
        divided = source.every(splits.HELD_OUT, name == "validation", split)
        if not divided.num_examples:
            raise ValueError(f"There are too few examples for the split {split!r}. Received: {source}.")
        return divided
    groups = source.labels() if source.kind.is_exclusive else np.zeros(source.num_examples)
    (keys,) = keys_of([source])
    chosen = splits.split_indices(keys, groups, 1 / splits.HELD_OUT)
    kept = chosen.get("test" if name == "validation" else "train")
    if kept is None:
        raise ValueError(f"There are too few different images for the split {split!r}. Received: {source}.")
    return source.subset(split, kept)


def keys_of(sources: Sequence[StoredSource]) -> list[list[str]]:
    """Return a key for each image of each source. The same images have the same key."""
    files, keys = list[Any](), list[str]()
    for source in sources:
        if isinstance(source, FileSource):
            files += source.files
            keys += source.relative_paths
        elif isinstance(source, ArraySource):
            keys += [hashlib.sha256(image.tobytes()).hexdigest() for image in source.images]
    bounds = np.cumsum([0, *(source.num_examples for source in sources)]).tolist()
    keys = merged(keys, files) if files else keys
    return [keys[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False)]


def merged(keys: Sequence[str], files: Sequence[Any]) -> list[str]:
    """Return the keys of files, with the smallest key for all files that have the same bytes.

    A file is a path or a `tar.Member`. Only the files with equal sizes are read. Remote files are not compared.
    """
    found, by_size = list(keys), collections.defaultdict(list)
    with Progress("Comparing the sizes of the files"):
        for index, place in enumerate(map(_place, files if len(files) <= MOST_FILES else ())):
            if place and place[2]:
                by_size[place[2]].append((index, place))
    doubtful = [pair for pairs in by_size.values() if len(pairs) > 1 for pair in pairs]
    digests = in_parallel(lambda pair: _digest(*pair[1]), doubtful)
    same = collections.defaultdict(list)
    for (index, _), digest in zip(doubtful, track(digests, "Comparing files", len(doubtful), "files"), strict=True):
        same[digest].append(index)
    same.pop(b"", None)
    for indices in same.values():
        smallest = min(keys[index] for index in indices)
        for index in indices:
            found[index] = smallest
    return found


def _place(file: Any) -> tuple[str, int, int, int] | None:
    """Return the path, offset and size of a file, and when it was changed; None if it is remote or does not exist."""
    path, offset, size = (file, 0, None) if isinstance(file, str) else (file.path, file.offset, file.size)
    path = path.removeprefix("file://")
    try:
        status = None if file_io.is_remote(path) else os.stat(path)
    except OSError:
        return None
    return None if status is None else (path, offset, status.st_size if size is None else size, status.st_mtime_ns)


@functools.lru_cache(maxsize=2 * MOST_FILES)
def _digest(path: str, offset: int, size: int, changed: int) -> bytes:
    """Return the hash of a file, or an empty hash if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return hashlib.sha256(file.read(size)).digest()
    except OSError:
        return b""


def about_same_images(sources: Sequence[Source]) -> list[str]:
    """Return notes about images that several splits contain, and about images with different labels.

    Images in records are not compared, because all of them would have to be read.
    """
    stored = [source for source in sources if isinstance(source, (ArraySource, FileSource))]
    if sum(source.num_examples for source in stored) > 2 * MOST_FILES:
        return []
    keys = keys_of(stored)
    notes = []
    for later, source in enumerate(stored):
        for earlier, other in enumerate(stored[:later]):
            if source.split == other.split:
                continue
            known = set(keys[earlier])
            shared = [source.origin(place) for place, key in enumerate(keys[later]) if key in known]
            if shared:
                notes.append(
                    f"{len(shared):,} of the {source.num_examples:,} images in {source.split!r} are also in "
                    f"{other.split!r} (same path or same content): {checks.listed(shared)}. Remove them from one of "
                    "the splits: they make the results look better than they are."
                )
    labels: dict[str, Any] = {}
    different = {}
    for source, own in zip(stored, keys, strict=True):
        if not source.kind.has_masks:
            for place, (key, label) in enumerate(zip(own, source.labels().tolist(), strict=True)):
                if labels.setdefault(key, label) != label:
                    different[key] = source.origin(place)
    if different:
        notes.append(
            f"{len(different):,} images occur with different labels (same path or same content): "
            f"{checks.listed(list(different.values()))}. `keras-vit check-data` lists all of them."
        )
    return notes
