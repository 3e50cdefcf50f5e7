"""Fingerprints of sources: short descriptions that differ if the examples do.

The fingerprint of files covers their names and sizes, in order, with their classes: a million of them are compared
without being read. That of arrays in memory covers their content.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit import _io
from keras_vit.data.record_files import RecordSource
from keras_vit.data.sources import ArraySource, FileSource, Source

MAX_FILES = 50_000  # of more, only the digest of each class is kept
_SHOWN = 3


def fingerprint(source: Source) -> dict[str, Any]:
    """Return the fingerprint of a source, for JSON.

    Args:
        source: Source that `open_source` returned.

    Returns:
        `"digest"`; and of a source of files also `"classes"`, digests by class name, and up to `MAX_FILES` files
        `"files"`, which are sizes by name by class name.

    Example:
    >>> fingerprint(open_source("digits"))["digest"]
    '...'
    """
    if isinstance(source, ArraySource):
        content = hashlib.sha256(np.ascontiguousarray(source.labels()).data)
        content.update(np.ascontiguousarray(source.images).data)
        return {"digest": content.hexdigest()}
    files = _files(source)
    slices = source.slices if isinstance(source, RecordSource) else ()
    digest = _digest(map(str, [*files, *((item.skip, item.take) for item in slices)]))
    classes: dict[str, dict[str, int | None]] = {}
    for class_name, name, size in files:
        classes.setdefault(class_name, {})[name] = size
    found = {"digest": digest, "classes": {name: _digest(map(str, entry.items())) for name, entry in classes.items()}}
    return found | ({"files": classes} if len(files) <= MAX_FILES else {})


def is_fingerprint(value: Any) -> bool:
    """Return whether a value has the types of a fingerprint."""
    if not isinstance(value, dict) or not isinstance(value.get("digest"), str):
        return False
    files, classes = value.get("files", {}), value.get("classes", {})
    return all(
        isinstance(entry, dict) for entry in (classes, files, *(files.values() if isinstance(files, dict) else ()))
    )


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences of two sets of fingerprints by split, in words, of the splits that both have."""
    before, now = ({split: of[split] for split in before if split in now} for of in (before, now))
    different = [split for split in now if now[split]["digest"] != before[split]["digest"]]
    if not different:
        return []
    if not all("files" in entry for entry in (*before.values(), *now.values())):
        return [_changed_classes(split, before[split], now[split]) for split in different]
    old, new = _by_name(before), _by_name(now)
    removed, added = ({name: of[name] for name in of if name not in other} for of, other in ((old, new), (new, old)))
    moved = {name: (old[name][0], new[name][0]) for name in old if name in new and old[name][0] != new[name][0]}
    places = {(os.path.basename(name), size): name for name, (_, size) in removed.items()}
    for name in list(added):
        class_name, size = added[name]
        origin = places.pop((os.path.basename(name), size), None)
        if origin is not None and removed[origin][0] != class_name:
            moved[name] = removed.pop(origin)[0], added.pop(name)[0]
    sizes = {name: (old[name][1], new[name][1]) for name in old if name in new and old[name][1] != new[name][1]}
    found = [
        _counted("added", list(added)),
        _counted("removed", list(removed)),
        _counted("of another size", [f"{name}: {a} -> {b} bytes" for name, (a, b) in sizes.items()]),
        _counted("in another class", [f"{name}: {a} -> {b}" for name, (a, b) in moved.items()]),
    ]
    return [text for text in found if text] or [f"another order or division of the files of {' and '.join(different)}"]


def _changed_classes(split: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return which classes of a split differ."""
    old, new = before.get("classes", {}), now.get("classes", {})
    names = [name for name in {**old, **new} if name and old.get(name) != new.get(name)]
    return f"other images in the split {split!r}{f', in the classes {_shown(names)}' if names else ''}"


def _by_name(fingerprints: Mapping[str, Any]) -> dict[str, tuple[str, int | None]]:
    """Return class and size of each file of all splits."""
    return {
        name: (class_name, size)
        for entry in fingerprints.values()
        for class_name, files in entry["files"].items()
        for name, size in files.items()
    }


def _counted(kind: str, names: Sequence[str]) -> str:
    return f"{len(names):,} file{'s' if len(names) > 1 else ''} {kind} ({_shown(names)})" if names else ""


def _shown(names: Sequence[str]) -> str:
    return _io.one_line(", ".join(names[:_SHOWN])) + (
        f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    )


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _files(source: Source) -> list[tuple[str, str, int | None]]:
    """Return class, name and size of each file of a source, in order; of other sources, only the number of examples."""
    if isinstance(source, RecordSource):
        return [("", os.path.basename(item.path), _size(item.path)) for item in source.slices]
    if not isinstance(source, FileSource):
        return [("", f"{source.num_examples} examples", None)]
    place = source.name.partition(":")[2]
    folder = f"{place.rstrip('/')}/" if os.path.isdir(place) else f"{os.path.dirname(place)}/"
    names, labels = source.class_names, source.labels()
    if labels.ndim == 2:
        classes = ["+".join(names[index] for index in np.flatnonzero(row)) for row in labels]
    else:
        classes = [names[label] for label in labels.tolist()] if names else [""] * len(labels)
    return [
        (class_name, path.removeprefix(folder), _size(path))
        for class_name, path in zip(classes, source.paths, strict=True)
    ]


def _size(path: str) -> int | None:
    """Return the size of a local file; None of a remote one, whose size takes a request, and of a missing one."""
    try:
        return None if "://" in path else os.stat(path).st_size
    except OSError:
        return None
