"""An object store on the disk in place of `s3://`: objects appear as a whole; no rename, no append."""

import os
import pathlib
import secrets
import shutil

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem


class Killed(BaseException):
    """The end of the process, after which nothing reaches the store."""


class ObjectStore(AbstractFileSystem):
    """Objects in the folder `root`. An upload whose name `ends` accepts ends in the middle, and with it everything.

    With `left`, everything ends before the operation of this number, of the store and of `os.replace`.
    """

    protocol = "s3"
    cachable = False
    root = pathlib.Path()
    ends = staticmethod(lambda name: False)
    is_dead = False
    is_full = False  # whether uploads fail
    left: int | None = None
    log: list[str] = []

    @staticmethod
    def kill(*_):
        ObjectStore.is_dead = True
        raise Killed

    @staticmethod
    def count():
        if ObjectStore.left is not None:
            ObjectStore.left -= 1
        if ObjectStore.is_dead or ObjectStore.left == 0:
            ObjectStore.kill()

    @staticmethod
    def restart():
        ObjectStore.ends, ObjectStore.is_dead = staticmethod(lambda name: False), False
        ObjectStore.is_full, ObjectStore.left = False, None

    def _path(self, key):
        ObjectStore.count()
        return self.root / self._strip_protocol(key)

    def _put(self, key, write, mode="overwrite"):
        path = self._path(key)
        if ObjectStore.is_full and ".lock-owner" not in path.name:
            raise PermissionError("quota")
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.root.with_name(secrets.token_hex(8))
        write(draft)
        if ".lock-owner" not in path.name and ObjectStore.ends(path.name):
            draft.write_bytes(draft.read_bytes()[: draft.stat().st_size // 2])
            ObjectStore.kill()
        if mode == "create":
            os.link(draft, path)  # FileExistsError if it exists
            draft.unlink()
        else:
            draft.replace(path)
        self.log.append(f"put {self._strip_protocol(key)}")

    def put_file(self, lpath, rpath, **options):
        self._put(rpath, lambda draft: shutil.copyfile(lpath, draft))

    def pipe_file(self, path, value, mode="overwrite", **options):
        self._put(path, lambda draft: draft.write_bytes(value), mode)

    def get_file(self, rpath, lpath, **options):
        shutil.copyfile(self._path(rpath), lpath)
        self.log.append(f"get {self._strip_protocol(rpath)}")

    def cat_file(self, path, **options):
        return self._path(path).read_bytes()

    def _open(self, path, mode="rb", **options):
        return open(self._path(path), mode)

    def rm_file(self, path):
        self._path(path).unlink()
        self.log.append(f"rm {self._strip_protocol(path)}")

    def ls(self, path, detail=True, **options):
        place = self._path(path)
        if place.is_file():
            return [self.info(path)]
        return [self.info(entry.relative_to(self.root).as_posix()) for entry in sorted(place.iterdir())]

    def info(self, path, **options):
        place = self._path(path)
        state = place.stat()
        kind = "directory" if place.is_dir() else "file"
        name = place.relative_to(self.root).as_posix()
        return {"name": name, "type": kind, "size": state.st_size, "mtime": state.st_mtime_ns, "ino": state.st_ino}


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The store, with `machine(name)`, which makes the process one of a machine with other local copies."""
    fsspec.register_implementation("s3", ObjectStore, clobber=True)
    (tmp_path / "objects" / "bucket").mkdir(parents=True)
    monkeypatch.setattr(ObjectStore, "root", tmp_path / "objects")
    monkeypatch.setattr(ObjectStore, "log", [])
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: ObjectStore.count() or replace(*paths))
    ObjectStore.restart()
    ObjectStore.machine = staticmethod(lambda name: monkeypatch.setenv("KERAS_HOME", str(tmp_path / name)))
    ObjectStore.machine("first")
    return ObjectStore
