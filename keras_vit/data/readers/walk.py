"""Files of a folder and of the folders below it: each folder once, regular files only."""

import collections
import os
from collections.abc import Iterable, Sequence

import tensorflow as tf

MAX_DEPTH = 100
_IGNORED = ("__MACOSX",)  # which archives made on a Mac contain

Identity = tuple[int, int] | None


class Tree:
    """The visible files and folders below a root. Links to folders that are read anyway are not followed.

    `skipped` are links to a folder that contains the data set, or that was visited; `special` are pipes, devices etc.
    """

    def __init__(self, root: str):
        self.root = root.removeprefix("file://").rstrip("/") or "/"
        self.skipped: list[str] = []
        self.special: list[str] = []
        self._above: set[Identity] = set()
        if not is_remote(self.root) and os.path.isdir(self.root):
            path = os.path.realpath(self.root)
            while path != os.path.dirname(path):
                self._above.add(_identity(path))
                path = os.path.dirname(path)
            self._above.add(_identity(path))

    def files(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        return self._list(folder)[0]

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder, without links to the data set itself."""
        names = []
        for name, _ in self._list(folder)[1]:
            if _identity(f"{folder}/{name}") in self._above:
                self._skip(f"{folder}/{name}")
            else:
                names.append(name)
        return names

    def below(self, folders: Sequence[tuple[str, str]]) -> list[list[str]]:
        """Return the relative paths of the files in and below folders, (split, path); splits may share a folder."""
        found: list[list[str]] = [[] for _ in folders]
        seen: dict[str, set[Identity]] = {split: set() for split, _ in folders}
        above = self._above | {_identity(os.path.dirname(path) or ".") for _, path in folders}
        # Links come last, so that the folders they lead to are found at their own places first.
        queue = collections.deque((number, "", False) for number, (_, path) in enumerate(folders) if not _is_link(path))
        links = collections.deque((number, "", False) for number, (_, path) in enumerate(folders) if _is_link(path))
        while queue or links:
            number, inner, by_link = queue.popleft() if queue else links.popleft()
            split, start = folders[number]
            folder, identity = f"{start}/{inner}".rstrip("/"), _identity(f"{start}/{inner}")
            visited = set().union(*seen.values()) if by_link else seen[split]
            if identity is not None and (identity in visited or (folder != self.root and identity in above)):
                self._skip(folder)
                continue
            seen[split].add(identity)
            if inner.count("/") > MAX_DEPTH:
                raise ValueError(
                    f"Folders may nest {MAX_DEPTH} levels deep. Received: more below {start}/{inner[:60]}... Move the "
                    "images up."
                )
            files, inside = self._list(folder)
            found[number] += [inner + name for name in files]
            for name, is_link in inside:
                (links if is_link else queue).append((number, f"{inner}{name}/", by_link or is_link))
        return found

    def _list(self, folder: str) -> tuple[list[str], list[tuple[str, bool]]]:
        """Return the names of the files and of the folders, the latter with whether they are links."""
        entries = _remote_entries(folder) if is_remote(folder) else _local_entries(folder)
        files, folders = [], []
        for name, kind, is_link in sorted(entries):
            if name.startswith(".") or name in _IGNORED:
                continue
            if kind == "folder":
                folders.append((name, is_link))
            elif kind == "file":
                files.append(name)
            elif f"{folder}/{name}" not in self.special:
                self.special.append(f"{folder}/{name}")
        return files, folders

    def _skip(self, folder: str) -> None:
        if folder not in self.skipped:
            self.skipped.append(folder)


def is_remote(path: str) -> bool:
    """Return whether a path is not in a local file system."""
    return "://" in path


def _remote_entries(folder: str) -> Iterable[tuple[str, str, bool]]:
    for name in tf.io.gfile.listdir(folder):
        name = name.rstrip("/")
        yield name, "folder" if tf.io.gfile.isdir(f"{folder}/{name}") else "file", False


def _local_entries(folder: str) -> Iterable[tuple[str, str, bool]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                entry.name.encode()
            except UnicodeEncodeError:
                name = os.fsencode(entry.name)
                raise ValueError(f"Names must be UTF-8. Received: {name!r} in {folder!r}. Rename the file.") from None
            yield entry.name, _kind(entry), entry.is_symlink()


def _kind(entry: os.DirEntry) -> str:
    try:
        if entry.is_dir():
            return "folder"
        # A link to nowhere, or in a circle, is a file that cannot be read, as the input pipeline will report.
        return "file" if entry.is_file() or not os.path.exists(entry.path) else "special"
    except OSError:
        return "file"


def _is_link(path: str) -> bool:
    return not is_remote(path) and os.path.islink(path)


def _identity(path: str) -> Identity:
    if is_remote(path):
        return None
    status = os.stat(path)
    return status.st_dev, status.st_ino
