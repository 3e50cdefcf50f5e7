"""Local copies of files and folders in buckets, `gs://` and `s3://`. Only this module accesses buckets.

TensorFlow, h5py, safetensors and the runtimes of artifacts need local files, and so do renames and locks. Programs
therefore work in a local copy. `publish` uploads the changed files, starting with the oldest, and then deletes the
removed files. Each object appears as a whole, the manifest of a checkpoint follows its arrays, and old checkpoints are
deleted last. A process that writes to an address owns it through an additional object in the bucket, which only one
process can create.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import filelock

from keras_vit import _extras, _io, _lock
from keras_vit._progress import Progress

SCHEMES = {"gs": "gcsfs", "s3": "s3fs"}  # scheme -> the package that supports it
_PUBLIC = ("gs://vit_models/", "gs://bit_models/")  # weights that `keras_vit.zoo` downloads without an account
_PATIENCE = 600  # seconds that the other workers wait until the chief owns the address
_IDENTITY = ("size", "ETag", "etag", "generation", "LastModified", "updated", "created", "mtime", "ino")
_LAST = "saved_model.pb"  # without it, a folder is not a SavedModel
_LARGE = re.compile(r"(^|/)(checkpoints|tensorboard)/")  # files of a run that its final model does not need
_SMALL = re.compile(r"\.jsonl?$")  # files that programs need even if they only list or add files

_published: dict[str, "_Copy"] = {}  # by local path


def is_address(path: str) -> bool:
    """Return whether a path is an address in a bucket, except for the buckets of published weights."""
    return path.partition("://")[0] in SCHEMES and "://" in path and not path.startswith(_PUBLIC)


def fetched(
    path: str | os.PathLike, checkpoint: str | int = "last", small: bool = False, must_exist: bool = True
) -> str:
    """Return a local path unchanged. For an address, update the local copy and return its path.

    Files that are not needed are empty in the copy. For `checkpoint="last"`, the files in `checkpoints/` and
    `tensorboard/` are empty, because `model.keras` suffices. With `small`, all files except JSON files are empty.
    """
    path = os.fspath(path)
    if not is_address(path):
        return path
    copy = _Copy(path, "read")
    copy.fetch(lambda name: bool(_SMALL.search(name)) if small else checkpoint != "last" or not _LARGE.search(name))
    if must_exist and not os.path.exists(copy.path):
        raise FileNotFoundError(f"There is nothing at {path}.")
    return copy.path


@contextlib.contextmanager
def written(path: str, flag: str = "--output", small: bool = False, writes: bool = True) -> Iterator[str]:
    """Yield a local path unchanged. For an address, yield the path of a local copy and publish the copy at the end.

    With `small`, all files except JSON files are empty in the copy and do not change in the bucket. With
    `writes=False`, the copy is only for reading, and is created after the chief, another process, has become the owner
    of the address. Messages name `flag`, the flag that sets the path.
    """
    if not is_address(path):
        yield path
        return
    copy = _Copy(path, "written" if writes else "read")
    with copy.owned(flag) if writes else copy.owned_by_chief():
        copy.fetch(lambda name: not small or bool(_SMALL.search(name)))
        if not writes:
            yield copy.path
            return
        _published[copy.path] = copy
        try:
            yield copy.path
        finally:
            del _published[copy.path]
            copy.publish()


def publish(path: str) -> None:
    """Upload the changes of the local copy that contains a path. Do nothing for other paths."""
    for place, copy in _published.items():
        if f"{path}/".startswith(f"{place}/"):
            copy.publish()


class _Copy:
    """Local copy of a folder or an object.

    If the name contains a dot, the copy also includes the model card and the other parts of the file, from the same
    folder. A copy for reading also includes the JSON files in this folder. Names of files are relative to the folder
    that contains the address.
    """

    def __init__(self, address: str, kind: str):
        scheme, _, place = address.rstrip("/").partition("://")
        parts = place.split("/")
        if len(parts) < 2 or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"Expected an address such as {scheme}://BUCKET/NAME. Received: {address!r}.")
        with _extras.needed("buckets", f"Addresses such as {address} need fsspec and {SCHEMES[scheme]}"):
            import fsspec

            with _reaching(address):
                self.files = fsspec.filesystem(scheme)
        self.address, self.name, self.folder = f"{scheme}://{place}", parts[-1], "/".join(parts[:-1])
        file, stem = re.escape(self.name), re.escape(os.path.splitext(self.name)[0])
        parts_of_a_file = rf"{file}\.[^/]*|{stem}(\.bin|_[^/]*config\.json|-\d+-of-\d+\.[^/]*)"
        self._beside = re.compile(parts_of_a_file + r"|[^/]*\.json" * (kind == "read"))
        self._owner = f"{self.folder}/{self.name}{_lock.LEASE}"
        self.path = _io.copy_of(self.address, kind)
        key = hashlib.sha256(self.path.encode()).hexdigest()[:16]
        self.record = os.path.join(_io.cache_directory(), "buckets", "records", f"{key}.json")

    def fetch(self, needs: Callable[[str], bool]) -> None:
        """Update the copy from the bucket. Outdated files that are not needed become empty."""
        with (
            _io.draft_directory(self.record) as drafts,
            filelock.FileLock(f"{self.record}.lock"),
            Progress(f"Reading {self.address}"),
            _reaching(self.address),
        ):
            objects, known = self._objects(), self._known()
            for name in set(self._local()) - objects.keys():
                os.unlink(self._path(name))
            states = {name: self._state(name) for name in objects}
            outdated = [
                (name, os.path.join(drafts, str(number)))
                for number, (name, (identity, size)) in enumerate(objects.items())
                if known.get(name) != [identity, *states[name]] or (needs(name) and states[name][1] != size)
            ]
            whole = [(f"{self.folder}/{name}", draft) for name, draft in outdated if needs(name)]
            if whole:
                self.files.get(*map(list, zip(*whole, strict=True)))
            for name, draft in outdated:
                os.makedirs(os.path.dirname(self._path(name)), exist_ok=True)
                open(draft, "ab").close()  # an empty file if it is not needed
                os.replace(draft, self._path(name))
                known[name] = [objects[name][0], *self._state(name)]
            _io.write_json(self.record, {name: known[name] for name in objects})

    def publish(self) -> None:
        """Upload the changed files, starting with the oldest, then delete the removed files."""
        known, states = self._known(), {name: self._state(name) for name in self._local()}
        changed = [name for name, state in states.items() if known.get(name, [None])[1:] != state]
        changed.sort(key=lambda name: (os.path.basename(name) == _LAST, states[name][0], name.endswith(".json")))
        gone = sorted(known.keys() - states.keys(), key=lambda name: not name.endswith(".json"))
        with Progress(f"Writing {self.address}", len(changed), unit="files") as bar, _reaching(self.address):
            if not self._is_mine():
                raise OSError("another process took the address over, because this process did not renew its ownership")
            for name in changed:
                self.files.put_file(self._path(name), f"{self.folder}/{name}")
                bar.add(1)
            for name in gone:
                with contextlib.suppress(FileNotFoundError):
                    self.files.rm_file(f"{self.folder}/{name}")
            objects = self._objects()
            _io.write_json(self.record, {n: [objects[n][0], *state] for n, state in states.items() if n in objects})

    @contextlib.contextmanager
    def owned(self, flag: str) -> Iterator[None]:
        """Own the address within a `with` block. Ownership that is not renewed for three minutes expires."""
        self._me = {"process": os.getpid(), "host": socket.gethostname(), "key": secrets.token_hex(8)}
        with _reaching(self.address):
            while not (self._sign(mode="create") or self._is_mine()):  # a retry finds the object that it created
                other = self._read_owner()
                if other and self._stays_silent(other, flag) and self._read_owner() == other:
                    self.files.rm_file(self._owner)
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(_lock.REFRESH):
                with contextlib.suppress(Exception):  # the network may be unavailable for a moment
                    if self._is_mine():
                        self._sign(mode="overwrite")

        thread = threading.Thread(target=renew, name="owner", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            with contextlib.suppress(Exception):
                if self._is_mine():
                    self.files.rm_file(self._owner)

    @contextlib.contextmanager
    def owned_by_chief(self) -> Iterator[None]:
        """Wait until another process becomes the owner of the address, in place of an earlier owner that was killed."""
        with _reaching(self.address), Progress(f"Waiting for the worker that writes to {self.address}"):
            earlier, deadline = self._read_owner(), time.monotonic() + _PATIENCE
            while self._read_owner() in (None, earlier):  # a living owner renews its ownership
                if time.monotonic() > deadline:
                    raise TimeoutError("no worker took the address over; see the log of the first worker")
                time.sleep(min(1.0, _lock.REFRESH))
        yield

    def _stays_silent(self, other: dict[str, Any], flag: str) -> bool:
        """Return True if the owner does not renew its ownership within three minutes.

        Raises an error if the owner renews its ownership.
        """
        owner, deadline = f"process {other.get('process')} on {other.get('host')}", time.monotonic() + _lock.SILENCE
        with Progress(f"Checking whether {owner} still writes to {self.address}"):
            while time.monotonic() < deadline:
                time.sleep(min(1.0, _lock.REFRESH))
                now = self._read_owner()
                if now != other:
                    if now is None:
                        return False
                    raise _lock.taken(self.address, flag, owner)
        return True

    def _sign(self, mode: str) -> bool:
        content = json.dumps({**self._me, "sign": secrets.token_hex(4)}).encode()
        try:
            self.files.pipe_file(self._owner, content, mode=mode)
        except FileExistsError:
            return False
        return True

    def _read_owner(self) -> dict[str, Any] | None:
        try:
            return json.loads(self.files.cat_file(self._owner))
        except FileNotFoundError:
            return None

    def _is_mine(self) -> bool:
        return (self._read_owner() or {}).get("key") == self._me["key"]

    def _objects(self) -> dict[str, tuple[str, int]]:
        """Return the identity and size of each object, by name."""
        self.files.invalidate_cache()
        found = dict(self.files.find(f"{self.folder}/{self.name}", detail=True))
        with contextlib.suppress(FileNotFoundError):
            if "." in self.name:
                found |= {info["name"]: info for info in self.files.ls(self.folder, detail=True)}
        start = len(self.folder.strip("/")) + 1
        names = {path.strip("/")[start:]: info for path, info in found.items() if info["type"] == "file"}
        return {
            name: (json.dumps({key: str(info.get(key)) for key in _IDENTITY}), info["size"])
            for name, info in names.items()
            if self._has(name) and not any(part in ("", ".", "..") for part in name.split("/"))
        }

    def _local(self) -> list[str]:
        """Return the names of the files in the copy."""
        root = os.path.dirname(self.path)
        found = [os.path.join(folder, file) for folder, _, files in os.walk(self.path) for file in files]
        found += [entry.path for entry in os.scandir(root)] if os.path.isdir(root) else []
        names = (os.path.relpath(path, root) for path in found if os.path.isfile(path))
        return sorted({name for name in names if self._has(name)})

    def _has(self, name: str) -> bool:
        """Return whether a file belongs to the copy. Temporary files and lock files do not."""
        is_own = name.partition("/")[0] == self.name or ("." in self.name and self._beside.fullmatch(name))
        return bool(is_own) and not re.search(r"(^|/)\.|\.lock-owner$", name)

    def _path(self, name: str) -> str:
        return os.path.join(os.path.dirname(self.path), name)

    def _state(self, name: str) -> list[int]:
        """Return the modification time and size of a file, or [0, -1] if it does not exist."""
        try:
            info = os.stat(self._path(name))
        except FileNotFoundError:
            return [0, -1]
        return [info.st_mtime_ns, info.st_size]

    def _known(self) -> dict[str, list]:
        """Return the identity, time and size of each file when it last matched the bucket."""
        return _io.read_json(self.record) if os.path.exists(self.record) else {}


@contextlib.contextmanager
def _reaching(address: str) -> Iterator[None]:
    """Convert all errors of a bucket to an OSError that names the address."""
    try:
        yield
    except (ValueError, ImportError):
        raise
    except Exception as error:
        raise OSError(f"Could not reach {address}: {type(error).__name__}: {_io.one_line(error)}") from error
