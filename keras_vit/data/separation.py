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
from keras_vit.util import checks
from keras_vit.util.progress import track

MOST_FILES = 50_000  # of more files, only the paths are compared


def part(source: Source, name: str, split: str) -> Source:
    """Return the part `"validation"` or `"fit"` of a source as the split `split`.

    Images in files and in memory are divided by class, and the same images are in the same part. The part of an image
    depends on a hash of its relative path or pixels. Of records, every seventh is in `"validation"`.
    """
    held_out = name == "validation"
    if isinstance(source, StoredSource):
        groups = source.labels() if source.kind.is_exclusive else np.zeros(source.num_examples)
        chosen = splits.split_indices(keys_of([source]), groups, 1 / splits.HELD_OUT)
        divided = source.subset(split, chosen.get("test" if held_out else "train", np.zeros(0, np.int64)))
    else:
        divided = source.every(splits.HELD_OUT, held_out, split)
    if not divided.num_examples:
        raise ValueError(f"There are too few different examples for the split {split!r}. Received: {source}.")
    return divided


def keys_of(sources: Sequence[StoredSource]) -> list[str]:
    """Return a key for each image of the sources, one source after the other. The same images have the same key."""
    of_files = [source for source in sources if isinstance(source, FileSource)]
    arrays = [image for source in sources if isinstance(source, ArraySource) for image in source.images]
    names = [os.path.normpath(name) for source in of_files for name in source.relative_paths]
    paths = merged(names, [file for source in of_files for file in source.files])
    return paths or [hashlib.sha256(image.tobytes()).hexdigest() for image in arrays]


def merged(keys: Sequence[str], files: Sequence[Any]) -> list[str]:
    """Return the keys of files, with the smallest key for all files that have the same bytes.

    A file is a path or a `tar.Member`. Only the files with equal sizes are read. Remote files are not compared.
    """
    described = dict(enumerate(map(_described, files if len(files) <= MOST_FILES else ())))
    sizes = collections.Counter(file[2] for file in described.values() if file)
    doubtful = [(index, file) for index, file in described.items() if file and sizes[file[2]] > 1]
    digests = in_parallel(lambda pair: _digest(*pair[1]), doubtful)
    found, smallest = list(keys), dict[bytes, str]()
    hashed = list(zip(doubtful, track(digests, "Comparing files", len(doubtful), "files"), strict=True))
    for (index, _), digest in hashed:
        smallest[digest] = min(keys[index], smallest.get(digest, keys[index]))
    for (index, _), digest in hashed:
        found[index] = smallest[digest]
    return found


def _described(file: Any) -> tuple[str, int, int, int] | None:
    """Return path, offset, size and time of a file; None if it is empty, a URL, or does not exist."""
    path, offset, size = (file, 0, None) if isinstance(file, str) else (file.path, file.offset, file.size)
    try:
        status = os.stat(path.removeprefix("file://"))
    except OSError:
        return None
    size = status.st_size if size is None else size
    return (path.removeprefix("file://"), offset, size, status.st_mtime_ns) if size else None


@functools.lru_cache(maxsize=2 * MOST_FILES)
def _digest(path: str, offset: int, size: int, changed: int) -> bytes:
    """Return the hash of a file, or its path if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return hashlib.sha256(file.read(size)).digest()
    except OSError:
        return os.fsencode(path)


def about_same_images(sources: Sequence[Source]) -> list[str]:
    """Return notes about images that several splits contain, and about images with different labels.

    Images in records are not compared, because all of them would have to be read.
    """
    stored = [source for source in sources if isinstance(source, StoredSource)]
    keys, known = iter(keys_of(stored)), dict[str, tuple[str, Any]]()
    shared, different = collections.defaultdict(list), dict[str, str]()
    for source in stored:
        labels = [None] * source.num_examples if source.kind.has_masks else source.labels().tolist()
        for index, (label, key) in enumerate(zip(labels, keys, strict=False)):
            split, first = known.setdefault(key, (source.split, label))
            if split != source.split:
                shared[source, split].append(source.origin(index))
            if label != first:
                different[key] = source.origin(index)
    notes = [
        f"{len(names):,} of the {source.num_examples:,} images in {source.split!r} are also in {split!r} (same path or "
        f"content), which makes results look better than they are: {checks.listed(names)}."
        for (source, split), names in shared.items()
    ]
    listed = checks.listed(list(different.values()))
    return [*notes, f"{len(different):,} images have different labels in the data: {listed}."] if different else notes
