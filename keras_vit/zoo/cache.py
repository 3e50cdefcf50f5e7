"""Find files of weights in a mirror or in the cache, or download them from their owners.

This module does not use `keras.utils.get_file`, which waits forever for a server that stalls. Keras also writes under
the final name, so that another process may read an incomplete file.
"""

import base64
import hashlib
import http.client
import os
import pathlib
import re
import time
import urllib.parse
import urllib.request
import zipfile

from absl import logging
from safetensors import SafetensorError, safe_open

from keras_vit.util import storage
from keras_vit.util.file_io import atomic_file, cache_directory, sha256, write_text
from keras_vit.util.progress import Progress
from keras_vit.zoo import hub

MIRROR_VARIABLE = "KERAS_VIT_WEIGHTS_DIR"
HOST = "storage.googleapis.com"
_TIMEOUT = 60  # seconds without data, and seconds until the average speed counts
_BYTES_PER_SECOND = 64 << 10  # slower downloads are aborted
_MAX_BYTES = 8 << 30  # twice the largest published file
_BLOCK_BYTES = 2**20


def fetch(location: str) -> str:
    """Return the path of weights in the mirror or in the cache, after downloading them if necessary.

    The mirror is the directory in the environment variable `KERAS_VIT_WEIGHTS_DIR`. The mirror contains files by bucket
    and path, such as `vit_models/augreg/NAME.npz`, and models of the Hugging Face hub as `hf/OWNER/NAME/`.

    A downloaded file enters the cache if the file is complete and matches the size and MD5 reported by the server. The
    file's SHA-256 is stored in `NAME.npz.sha256` and compared at each use. A damaged file is downloaded again. For
    models of the hub, `huggingface_hub` has its own cache. The weights are compared with the SHA-256 reported by the
    hub.

    Args:
        location: A path in the bucket of published weights, a model of the Hugging Face hub (`"hf:OWNER/NAME"`), or the
            URL of a file in a bucket (`"gs://BUCKET/NAME"`).

    Raises:
        OSError: If the weights cannot be downloaded.

    Example:
        path = keras_vit.zoo.fetch("vit_models/augreg/index.csv")
    """
    if storage.is_bucket_url(location):
        return storage.fetched(location)
    for candidate in search_paths(location):
        if candidate.is_dir() and location.startswith(hub.PREFIX):
            return str(candidate)
        if candidate.is_file():
            if is_undamaged(candidate):
                return str(candidate)
            logging.warning("%s is damaged: its SHA-256 differs from the recorded SHA-256.", candidate)
    if location.startswith(hub.PREFIX):
        return hub.fetch(location, str(search_paths(location)[-1]))
    return _fetch_file(location)


def search_paths(location: str) -> list[pathlib.Path]:
    """Return the paths at which `fetch` looks for a file, in the mirror (if set) and in the cache.

    Users can put a file at any of these paths manually.
    """
    directories = (os.environ.get(MIRROR_VARIABLE), cache_directory())
    return [pathlib.Path(directory, location.replace(hub.PREFIX, "hf/", 1)) for directory in directories if directory]


def is_undamaged(path: pathlib.Path) -> bool:
    """Return whether a file has the SHA-256 that was recorded after its download, or has no recorded hash."""
    return _recorded(path) in ("", sha256(path))


def find_local(location: str) -> str | None:
    """Return the path of weights on this machine, or None if there is no local copy. Nothing is downloaded."""
    found = next((str(candidate) for candidate in search_paths(location) if candidate.exists()), None)
    return hub.find_local(location) if found is None and location.startswith(hub.PREFIX) else found


def verify(path: str) -> bool | None:
    """Return whether a file or a directory of the hub matches its recorded hashes, or None if there are no hashes."""
    hashes = hub.stated_hashes(path) if os.path.isdir(path) else {path: _recorded(pathlib.Path(path))}
    hashes = {file: stated for file, stated in hashes.items() if stated}
    with Progress(f"Verifying {path}"):
        return all(sha256(file) == stated for file, stated in hashes.items()) if hashes else None


def _fetch_file(path: str) -> str:
    """Download a file to the cache, and return its path."""
    url, target = f"https://{HOST}/{urllib.parse.quote(path)}", search_paths(path)[-1]
    logging.info("Downloading %s to %s.", url, target)
    try:
        with atomic_file(target) as temporary:
            _download(url, temporary)
            if not path.endswith(".csv"):
                _check_whole(temporary)
            digest = sha256(temporary)
            if _recorded(target) not in ("", digest):
                raise OSError(
                    f"its SHA-256 differs from the recorded SHA-256; if the owners changed it, delete {target}.sha256"
                )
            write_text(f"{target}.sha256", f"{digest}  {target.name}\n")
    except (OSError, http.client.HTTPException) as error:
        mirror = os.environ.get(MIRROR_VARIABLE)
        mirror = f"{mirror} ({MIRROR_VARIABLE})" if mirror else f"the directory that you set in {MIRROR_VARIABLE}"
        raise OSError(
            f"Could not fetch {url} ({error}). Without a network, put a copy of the file at {target}, or into "
            f"{mirror} as {path}."
        ) from error
    return str(target)


def _check_whole(path: str) -> None:
    """Refuse a download that is not a complete `.npz` or `.safetensors` file."""
    with open(path, "rb") as file:
        head = file.read(9)
    if head.startswith(b"PK\x03\x04"):
        if not zipfile.is_zipfile(path):
            raise OSError("download truncated: the archive has no end")
    elif head[8:] == b"{":
        try:
            with safe_open(path, "numpy"):
                pass
        except SafetensorError as error:
            raise OSError(f"download truncated or damaged: {error}") from error
    else:
        raise OSError(f"the server returned an error page or another file, which begins with {head!r}")


def _recorded(path: pathlib.Path) -> str:
    """Return the recorded SHA-256 of a file, or an empty string without a record."""
    record = pathlib.Path(f"{path}.sha256")
    return record.read_text(errors="replace").partition(" ")[0] if record.is_file() else ""


def _download(url: str, path: str) -> None:
    """Download a file. Web pages, a wrong size or MD5, and downloads that are too large or too slow are refused."""
    started, md5 = time.monotonic(), hashlib.md5(usedforsecurity=False)
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as response, open(path, "wb") as file:
        if response.headers.get_content_type() == "text/html":
            raise OSError("the server returned a page instead of the file")
        stated = response.headers.get("Content-Length") or "0"
        if not re.fullmatch(r"[0-9]{1,15}", stated):
            raise OSError(f"the Content-Length is not a number of bytes: {stated[:100]!r}")
        size = int(stated)
        with Progress("Downloading", max(size // 2**20, 1) if size else None, unit="MiB") as bar:
            while block := response.read1(_BLOCK_BYTES):  # `read` waits for the whole block
                file.write(block)
                md5.update(block)
                bar.update(file.tell() // 2**20)
                slow = file.tell() < _BYTES_PER_SECOND * (time.monotonic() - started - _TIMEOUT)
                if slow or max(file.tell(), size) > _MAX_BYTES:
                    limits = f"at most {_MAX_BYTES} bytes, and {_BYTES_PER_SECOND} bytes per second or more"
                    raise OSError(f"expected {limits}")
        if size and file.tell() != size:
            raise OSError(f"download incomplete: {file.tell()} of {size} bytes")
        hashes = re.findall("md5=([^, ]+)", ",".join(response.headers.get_all("x-goog-hash", [])))
        if hashes not in ([], [base64.b64encode(md5.digest()).decode()]):
            raise OSError(f"download damaged: its MD5 is not the {hashes[0]!r} that the server states")
