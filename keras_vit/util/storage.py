"""Local copies of files and folders in buckets, `gs://` and `s3://`.

TensorFlow, h5py, safetensors and the runtimes of artifacts need local files, and so do renames and locks. Programs
therefore work in a local copy. The record of a copy has the state of each file, here and in the bucket, when both were
equal. At the start, files that changed in the bucket are downloaded, and files that changed only here, because their
upload failed, are uploaded. If both changed, the files that changed here are moved to another folder.

`upload` uploads the changed files, and then deletes the removed files. Each object appears as a whole, the manifest of
a checkpoint follows its arrays, and old checkpoints are deleted last. A process that writes to a URL holds its lease
(`bucket_lease.py`). Readers of TFRecord files with indices read parts of objects, without a copy (`bucket_parts.py`).
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import filelock
from absl import logging

from keras_vit.util import extras, file_io, locks
from keras_vit.util.bucket_lease import Lease, reaching
from keras_vit.util.progress import Progress

SCHEMES = {"gs": "gcsfs", "s3": "s3fs"}  # scheme -> the package that supports it
_PUBLIC = ("gs://vit_models/", "gs://bit_models/")  # weights that `keras_vit.zoo` downloads without an account
_IDENTITY = ("size", "ETag", "etag", "generation", "LastModified", "updated", "created", "mtime", "ino")
_EVERY = 60  # seconds between uploads of a growing output
_PARALLEL = 4  # number of simultaneous uploads
_LAST = "saved_model.pb"  # without it, a folder is not a SavedModel
_PARTS = ".parts"  # extension of the folder with the finished parts of a file
_LARGE = re.compile(r"(^|/)(checkpoints|tensorboard)/")  # files of a run that its final model does not need
# Files that programs need even if they only list or add files: JSON, indices of TFRecord files, and parts.
_SMALL = re.compile(rf"\.(jsonl?|idx)$|{re.escape(_PARTS)}/")

_open_copies: dict[str, "_Copy"] = {}  # by local path


def is_bucket_url(path: str) -> bool:
    """Return whether a path is the URL of a file or folder in a bucket, except for the buckets of published weights."""
    return path.partition("://")[0] in SCHEMES and "://" in path and not path.startswith(_PUBLIC)


def fetched(
    path: str | os.PathLike, checkpoint: str | int | None = None, small: bool = False, must_exist: bool = True
) -> str:
    """Return a local path unchanged. For a bucket URL, update the local copy and return its path.

    Files that are not needed are empty in the copy. Without `checkpoint`, the files in `checkpoints/` and
    `tensorboard/` are empty, because `model.keras` suffices. With `small`, all files except JSON files and indices are
    empty.
    """
    path = os.fspath(path)
    if not is_bucket_url(path):
        return path
    copy = _Copy(path, "read")
    copy.fetch(lambda name: bool(_SMALL.search(name)) if small else checkpoint is not None or not _LARGE.search(name))
    if must_exist and not os.path.exists(copy.path):
        raise FileNotFoundError(f"There is nothing at {path}.")
    return copy.path


@contextlib.contextmanager
def written(path: str, flag: str = "--output", small: bool = False, writes: bool = True) -> Iterator[str]:
    """Yield a local path unchanged. For a bucket URL, yield the path of a local copy and upload the copy at the end.

    With `small`, all files except JSON files and indices are empty in the copy and do not change in the bucket. With
    `writes=False`, the copy is only for reading, and is created after the chief, another process, has the lease of the
    URL. Messages name `flag`, the flag that sets the path.
    """
    if not is_bucket_url(path):
        yield path
        return
    copy = _Copy(path, "written" if writes else "read")
    needs = lambda name: not small or bool(_SMALL.search(name))  # noqa: E731
    if not writes:
        copy.lease.wait_for_chief()
        copy.fetch(needs)
        yield copy.path
        return
    with locks.locked(os.path.dirname(copy.record), flag), copy.held(flag):
        copy.fetch(needs)
        copy.upload()  # the changes that an earlier process did not upload
        copy.lease.let_others_read()
        _open_copies[copy.path] = copy
        try:
            yield copy.path
        finally:
            del _open_copies[copy.path]
            copy.upload()


def upload(path: str, growing: bool = False) -> None:
    """Upload the changes of the local copy that contains a path. Do nothing for other paths.

    With `growing`, upload at most once a minute and only log errors, because a later call uploads the same changes.
    """
    for root, copy in _open_copies.items():
        if f"{path}/".startswith(f"{root}/") and not (growing and time.monotonic() < copy.due):
            try:
                copy.upload()
            except OSError as error:
                if not growing:
                    raise
                logging.warning("%s", error)
            copy.due = time.monotonic() + _EVERY


def file_system(url: str) -> Any:
    """Return fsspec's file system of a URL."""
    scheme = url.partition("://")[0]
    with extras.needed("buckets", f"URLs such as {url} need fsspec and {SCHEMES[scheme]}"):
        import fsspec

        with reaching(url):
            return fsspec.filesystem(scheme)


class _Copy:
    """Local copy of a folder or an object.

    If the name contains a dot, the copy also includes the model card and the other parts of the file, from the same
    folder. A copy for reading also includes the JSON files in this folder. Names of files are relative to the parent
    of the URL.
    """

    def __init__(self, url: str, kind: str):
        scheme, _, path = url.rstrip("/").partition("://")
        parts = path.split("/")
        if len(parts) < 2 or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"Expected a URL such as {scheme}://BUCKET/NAME. Received: {url!r}.")
        self.files = file_system(url)
        self.url, self.name, self.folder = f"{scheme}://{path}", parts[-1], "/".join(parts[:-1])
        file, stem = re.escape(self.name), re.escape(os.path.splitext(self.name)[0])
        parts_of_a_file = rf"{file}\.[^/]*|{stem}(\.bin|_[^/]*config\.json|-\d+-of-\d+\.[^/]*)"
        self._beside = re.compile(parts_of_a_file + r"|[^/]*\.json" * (kind == "read"))
        self.lease = Lease(self.files, self.url, f"{self.folder}/{self.name}{locks.LEASE}")
        own = f"{kind}_{hashlib.sha256(self.url.encode()).hexdigest()[:16]}"  # copies do not share files
        self.path, self._root = file_io.copy_of(self.url, own), file_io.copy_of("", own)
        self._is_written = kind == "written"
        self.record = os.path.join(file_io.copy_of(self.url, f"{own}_record"), ".record.json")
        self.due = 0.0  # when a growing output is uploaded again

    def fetch(self, needs: Callable[[str], bool]) -> None:
        """Update the copy from the bucket. Outdated files that are not needed become empty."""
        with (
            file_io.draft_directory(self.record) as drafts,
            filelock.FileLock(f"{self.record}.lock"),
            Progress(f"Reading {self.url}"),
            reaching(self.url),
        ):
            objects, known = self._objects(), self._record()["files"]
            kept = self._kept(objects, known) if self._is_written else set()
            for name in known.keys() - objects.keys() - kept:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(name))
            states, outdated = self._states(), dict[str, str]()
            for name in objects.keys() - kept:
                (identity, size), state = objects[name], states.get(name, [None, None])
                if known.get(name) != [identity, *state] or (needs(name) and state[1] != size):
                    outdated[name] = os.path.join(drafts, str(len(outdated)))
            whole = [(f"{self.folder}/{name}", draft) for name, draft in outdated.items() if needs(name)]
            if whole:
                self.files.get(*map(list, zip(*whole, strict=True)))
            for name, draft in outdated.items():
                os.makedirs(os.path.dirname(self._path(name)), exist_ok=True)
                open(draft, "ab").close()  # an empty file if it is not needed
                os.replace(draft, self._path(name))
            states = self._states()
            known |= {name: [objects[name][0], *states[name]] for name in outdated}
            self._write_record({name: known[name] for name in known.keys() & objects.keys()})

    def _kept(self, objects: dict[str, tuple[str, int]], known: dict[str, list]) -> set[str]:
        """Return the files that changed only here. If the bucket changed as well, move them to another folder."""
        states = self._states()  # an empty file may represent an object that was not needed
        here = {name for name, (_, size) in _changed(states, known).items() if size or name not in objects}
        there = (known.keys() & states.keys()) - objects.keys()
        if self.lease.is_unfinished:  # no other process wrote, but the record may lack the last uploads of this copy
            there -= here
        else:
            there |= {name for name, (identity, _) in objects.items() if known.get(name, [None])[0] != identity}
        if not here or not there:
            return here
        folder = os.path.join(file_io.cache_directory(), "buckets", "not-uploaded", secrets.token_hex(4))
        for name in here:
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            os.replace(self._path(name), os.path.join(folder, name))
        text = "Another process changed %s after the last upload from here. Files that changed here are now in %s: %s"
        logging.warning(text, self.url, folder, ", ".join(sorted(here)))
        return set()

    def upload(self) -> None:
        """Upload the changed files, then delete the removed files."""
        known, states = self._record()["files"], self._states()
        changed, gone = _changed(states, known), known.keys() - states.keys()
        if not changed and not gone:
            self.lease.is_unfinished = False
            return
        stay = (
            f". The changes stay in {self._root} on this machine. The next command that writes to this URL "
            "uploads them, unless another process changes the bucket before."
        )
        self.lease.is_unfinished = True
        with Progress(f"Writing {self.url}"), reaching(self.url, stay):
            if not self.lease.is_mine():
                raise OSError("another process took over the URL")
            later = [name for name in changed if name.endswith(".json") or os.path.basename(name) == _LAST]
            later.sort(key=lambda name: (os.path.basename(name) == _LAST, states[name][0]))
            for names in ([name for name in changed if name not in later], *([name] for name in later)):
                targets = [f"{self.folder}/{name}" for name in names]
                self.files.put([self._path(name) for name in names], targets, batch_size=_PARALLEL)
            for name in sorted(gone, key=lambda name: not name.endswith(".json")):
                with contextlib.suppress(FileNotFoundError):
                    self.files.rm_file(f"{self.folder}/{name}")
            objects = self._objects()
        uploaded = {name: [objects[name][0], *states[name]] for name in changed.keys() & objects.keys()}
        self._write_record({name: known[name] for name in states.keys() - changed.keys()} | uploaded)
        self.lease.is_unfinished = False

    def _objects(self) -> dict[str, tuple[str, int]]:
        """Return the identity and size of each object, by name."""
        self.files.invalidate_cache()
        found = dict(self.files.find(f"{self.folder}/{self.name}", detail=True))
        with contextlib.suppress(FileNotFoundError):
            if "." in self.name:
                found |= self.files.find(f"{self.folder}/{self.name}{_PARTS}", detail=True)
                found |= {info["name"]: info for info in self.files.ls(self.folder, detail=True)}
        start = len(self.folder.strip("/")) + 1
        names = {path.strip("/")[start:]: info for path, info in found.items() if info["type"] == "file"}
        return {
            name: (json.dumps({key: str(info.get(key)) for key in _IDENTITY}), info["size"])
            for name, info in names.items()
            if self._has(name) and not any(part in ("", ".", "..") for part in name.split("/"))
        }

    def _states(self) -> dict[str, list[int]]:
        """Return the modification time and size of each file in the copy, by name."""
        root, found = os.path.dirname(self.path), dict[str, list[int]]()
        walks = (os.walk(self.path), os.walk(f"{self.path}{_PARTS}"), itertools.islice(os.walk(root), 1))
        for folder, _, files in itertools.chain(*walks):
            for path in (os.path.join(folder, file) for file in files):
                with contextlib.suppress(FileNotFoundError):
                    info = os.stat(path)
                    found[os.path.relpath(path, root)] = [info.st_mtime_ns, info.st_size]
        return {name: found[name] for name in sorted(found) if self._has(name)}

    def _has(self, name: str) -> bool:
        """Return whether a file belongs to the copy. Temporary files and lock files do not."""
        is_own = name.partition("/")[0] in (self.name, f"{self.name}{_PARTS}")
        is_own |= "." in self.name and bool(self._beside.fullmatch(name))
        return is_own and not re.search(r"(^|/)\.|\.lock-owner$", name)

    def _path(self, name: str) -> str:
        return os.path.join(os.path.dirname(self.path), name)

    def held(self, flag: str) -> contextlib.AbstractContextManager[None]:
        """Hold the lease within a `with` block. A copy whose process was killed continues its lease at once."""
        return self.lease.held(flag, self._record()["key"])

    def _record(self) -> dict[str, Any]:
        """Return the identity, time and size of each file when it last matched the bucket, and the owner's key."""
        return file_io.read_json(self.record) if os.path.exists(self.record) else {"key": None, "files": {}}

    def _write_record(self, files: dict[str, list]) -> None:
        file_io.write_json(self.record, {"key": self.lease.key if self._is_written else None, "files": files})


def _changed(states: dict[str, list[int]], known: dict[str, list]) -> dict[str, list[int]]:
    """Return the files that differ from the record."""
    return {name: state for name, state in states.items() if known.get(name, [None])[1:] != state}
