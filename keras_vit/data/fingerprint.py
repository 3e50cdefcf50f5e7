"""Fingerprints of sources: short descriptions that differ if the examples differ.

For files, the fingerprint covers the names and sizes, in order, and the classes, values or masks. A million files can
therefore be compared without reading them. For arrays in memory, the fingerprint covers the content.
"""

import collections
import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_vit.data.grouped import RandomRecordSource
from keras_vit.data.readers.webdataset import TarSource
from keras_vit.data.record_files import RecordSource
from keras_vit.data.sources import ArraySource, FileSource, MaskFileSource, Source
from keras_vit.util import file_io

_SHOWN = 5  # maximum number of classes per split in messages


def fingerprint(source: Source) -> dict[str, Any]:
    """Return `"digest"` and, for files, `"classes"` and `"counts"`: the digest and number of files of each class."""
    if isinstance(source, ArraySource):
        content = hashlib.sha256(np.ascontiguousarray(source.labels()).data)
        content.update(np.ascontiguousarray(source.images).data)
        return {"digest": content.hexdigest()}
    files = _files(source)
    slices = source.slices if isinstance(source, RecordSource) else ()
    values = source.labels().tolist() if isinstance(source, FileSource) and source.value_names else ()
    described = source.described if isinstance(source, RandomRecordSource) else ()
    classes: dict[str, dict[str, int | None]] = collections.defaultdict(dict)
    for class_name, name, size in files:
        classes[class_name][name] = size
    return {
        "digest": _digest(map(str, [*files, *((item.skip, item.take) for item in slices), *values, *described])),
        "classes": {name: _digest(map(str, entry.items())) for name, entry in classes.items()},
        "counts": {name: len(entry) for name, entry in classes.items()},
    }


def is_fingerprint(value: Any) -> bool:
    """Return whether a value has the structure of a fingerprint."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("digest"), str)
        and all(isinstance(value.get(key, {}), dict) for key in ("classes", "counts"))
    )


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Describe the differences between two sets of fingerprints by split, for the splits in both sets."""
    splits = [split for split in now if split in before and now[split]["digest"] != before[split]["digest"]]
    return [
        f"other images or another order in the split {split!r}{_classes(before[split], now[split])}" for split in splits
    ]


def _classes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """List the classes of a split that differ, with their numbers of files."""
    old, new = before.get("classes", {}), now.get("classes", {})
    names = sorted(name for name in {**old, **new} if name and old.get(name) != new.get(name))
    if not names:
        return ""
    counts = [entry.get("counts", {}) for entry in (before, now)]
    listed = [f"{name} ({' -> '.join(str(of.get(name, 0)) for of in counts)} files)" for name in names[:_SHOWN]]
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f": {', '.join(listed)}{more}"


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _files(source: Source) -> list[tuple[str, str, int | None]]:
    """Return class, name and size of each file in order. For a source without files, return the number of examples."""
    if isinstance(source, RecordSource):
        return [("", os.path.basename(item.path), _size(item.path)) for item in source.slices]
    if not isinstance(source, FileSource):
        return [("", f"{source.num_examples} examples", None)]
    if isinstance(source, MaskFileSource):
        folder = source.name.partition(":")[2]
        return [("", os.path.relpath(path, folder), _size(path)) for path in (*source.paths, *source.mask_paths)]
    names, labels = source.class_names, source.labels()
    if not names:
        classes = [""] * len(labels)
    elif labels.ndim == 2:
        classes = ["+".join(names[index] for index in np.flatnonzero(row)) for row in labels]
    else:
        classes = [names[label] for label in labels.tolist()]
    sizes = source.files.sizes.tolist() if isinstance(source, TarSource) else map(_size, source.paths)
    return list(zip(classes, source.relative_paths, sizes, strict=True))


def _size(path: str) -> int | None:
    """Return the size of a local file. Return None for a missing file, and for a remote file to avoid a request."""
    try:
        return None if file_io.is_remote(path) else os.stat(path.removeprefix("file://")).st_size
    except OSError:
        return None
