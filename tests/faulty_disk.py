"""A disk that simulates a power failure: unsynced contents of files and names in unsynced directories are lost."""

import os
import pathlib


class FaultyDisk:
    """Records `os.fsync`, `os.replace` and `os.rename` of this process below a directory.

    A renamed folder also loses the names of files in each of its folders that was not synced after they were added.
    What other libraries rename by themselves (TensorFlow) keeps its name, and only its content can be lost.
    """

    def __init__(self, monkeypatch, root):
        self.root, self._synced, self._renamed, self._folders = pathlib.Path(root), {}, [], []
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._sync)
        for name in ("replace", "rename"):
            monkeypatch.setattr(os, name, self._following(getattr(os, name)))

    def lose_power(self):
        """Undo renames whose directory was not synced after them, and empty files that were not synced as they are."""
        for path, old in reversed(self._renamed):
            if old is None:
                path.rename(path.with_name(f"lost-{path.name}"))
            else:
                path.write_bytes(old)
                self._note(os.stat(path))
        self._renamed = []
        for path in self.root.rglob("*"):
            if path.is_file() and self._synced.get(path.stat().st_ino) != _version(path.stat()):
                path.write_bytes(b"")
        for folder in [path for top in self._folders for path in (top, *top.rglob("*")) if path.is_dir()]:
            if self._synced.get(folder.stat().st_ino) != _version(folder.stat()):
                for path in filter(pathlib.Path.is_file, list(folder.iterdir())):
                    path.unlink()

    def _sync(self, handle):
        self._fsync(handle)
        found = os.fstat(handle)
        self._note(found)
        self._renamed = [(path, old) for path, old in self._renamed if path.parent.stat().st_ino != found.st_ino]

    def _note(self, found):
        self._synced[found.st_ino] = _version(found)

    def _following(self, move):
        def moved(source, target):
            target = pathlib.Path(target)
            old = target.read_bytes() if target.is_file() else None
            move(source, target)
            self._renamed.append((target, old))
            self._folders += [target] if target.is_dir() else []

        return moved


def _version(found):
    return found.st_size, found.st_mtime_ns
