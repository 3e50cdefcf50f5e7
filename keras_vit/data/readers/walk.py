"""Files of a folder and of the folders below it: regular files, and no image of the data set twice."""

import os
from collections.abc import Iterable, Sequence

import tensorflow as tf

from keras_vit import _io

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".jpe", ".jfif")
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
MAX_DEPTH = 100
_NAMED = 5  # of each kind, in a note
# Folders that file servers and operating systems add, in lower case
SYSTEM = (
    *("@eadir", "@tmp", "@recycle", "@recently-snapshot", "@sharebin", "#recycle", "#snapshot", "~snapshot"),
    *("$recycle.bin", "recycler", "system volume information", "found.000", "lost+found", "__pycache__"),
    *("network trash folder", "temporary items", "thevolumesettingsfolder"),
)


class Tree:
    """The visible files and folders below a root.

    `skipped` are links into the data set, to a folder around the link or the data set, or to a top-level folder such as
    `/usr`, and files that are not regular: pipes etc. `system` are the names of the folders of `SYSTEM` that are there.
    """

    def __init__(self, root: str):
        self.root = root.removeprefix("file://").rstrip("/") or "/"
        self.skipped: dict[str, None] = {}
        self.system: dict[str, None] = {}
        self._real = os.path.realpath(self.root)

    def files(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        return self._list(folder)[0]

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""
        return self._list(folder)[1]

    def below(self, start: str) -> list[str]:
        """Return the relative paths of the files in a folder and below it."""
        found: list[str] = []
        waiting, linked = [""], set[str]()
        while waiting:
            inner = waiting.pop()
            folder = f"{start}/{inner}".rstrip("/")
            if folder != self.root and not _io.is_remote(folder) and os.path.islink(folder):
                real = os.path.realpath(folder)
                shared = os.path.commonpath([real, self._real])
                around = os.path.commonpath([real, os.path.realpath(os.path.dirname(folder))])
                if real in linked or shared in (real, self._real) or around == real or real.count(os.sep) < 2:
                    self.skipped[folder] = None
                    continue
                linked.add(real)
            if inner.count("/") > MAX_DEPTH:
                raise ValueError(
                    f"Folders may nest {MAX_DEPTH} levels deep. Received: more below {start}/{inner[:60]}... Move the "
                    "images up."
                )
            files, inside = self._list(folder)
            found += [inner + name for name in files]
            waiting += [f"{inner}{name}/" for name in inside]
        return found

    def _list(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the names of the files and of the folders in a folder."""
        entries = _remote_entries(folder) if _io.is_remote(folder) else _local_entries(folder)
        found: dict[str, list[str]] = {"file": [], "folder": [], "special": []}
        for name, kind in sorted(entries):
            if name.lower() in SYSTEM and kind == "folder":
                self.system[name] = None
            elif not name.startswith(".") and name != "__MACOSX":  # which archives made on a Mac contain
                found[kind].append(name)
        self.skipped |= dict.fromkeys(f"{folder}/{name}" for name in found["special"])
        return found["file"], found["folder"]


def _remote_entries(folder: str) -> Iterable[tuple[str, str]]:
    for name in tf.io.gfile.listdir(folder):
        name = name.rstrip("/")
        yield name, "folder" if tf.io.gfile.isdir(f"{folder}/{name}") else "file"


def _local_entries(folder: str) -> Iterable[tuple[str, str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                entry.name.encode()
            except UnicodeEncodeError:
                name = os.fsencode(entry.name)
                raise ValueError(f"Names must be UTF-8. Received: {name!r} in {folder!r}. Rename the file.") from None
            yield entry.name, _kind(entry)


def _kind(entry: os.DirEntry) -> str:
    try:
        if entry.is_dir():
            return "folder"
        # A link to nowhere, or in a circle, is a file that cannot be read, as the input pipeline will report.
        return "file" if entry.is_file() or not os.path.exists(entry.path) else "special"
    except OSError:
        return "file"


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
