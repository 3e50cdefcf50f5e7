"""Files of weights: in a mirror, in the cache, or downloaded from their owners.

`keras.utils.get_file` is not used: it waits without a time limit for a server that stalls, and it writes under the
final name, where another process finds half of a file.
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

from keras_vit import _storage
from keras_vit._io import atomic_file, cache_directory, sha256, write_text
from keras_vit._progress import Progress
from keras_vit.zoo import hub

MIRROR_VARIABLE = "KERAS_VIT_WEIGHTS_DIR"
HOST = "storage.googleapis.com"
_TIMEOUT = 60  # seconds without a byte, and until the average speed counts
_BYTES_PER_SECOND = 64 << 10  # A slower download is given up.
_MAX_BYTES = 8 << 30  # twice the largest published file
_BLOCK_BYTES = 2**20


def fetch(address: str) -> str:
    """Return a local copy of weights: from the mirror, the cache, or their owners.

    The mirror is the directory that the environment variable `KERAS_VIT_WEIGHTS_DIR` names. It has the files in the
    folders of their buckets, such as `vit_models/augreg/NAME.npz`, and models of the hub as `hf/OWNER/NAME/`. A
    download is put into the cache if it has the size and the MD5 that its server states and is whole. Its SHA-256 is
    put beside it (`NAME.npz.sha256`), and compared at each use: a damaged file is downloaded again. `huggingface_hub`
    has a cache of its own; the SHA-256 that the hub states for weights is compared, too.

    Args:
        address: Bucket and file, below `https://storage.googleapis.com/`, or a model of the hub, `hf:OWNER/NAME`.

    Returns:
        The path of a file; of a model of the hub that of its directory.

    Raises:
        OSError: If it cannot be downloaded. The message has the address and the place to put a file by hand.
        ImportError: If a model of the hub is requested without the extra `[hub]`.

    Example:
    >>> path = fetch("vit_models/augreg/index.csv")  # doctest: +SKIP
    """
    if _storage.is_address(address):
        return _storage.fetched(address)
    for place in places(address):
        if place.is_dir() and address.startswith(hub.PREFIX):
            return str(place)
        if place.is_file():
            if is_undamaged(place):
                return str(place)
            logging.warning("%s is damaged: its SHA-256 is not the recorded one.", place)
    if address.startswith(hub.PREFIX):
        return hub.fetch(address, str(places(address)[-1]))
    return _fetch_file(address)


def places(address: str) -> list[pathlib.Path]:
    """Return the places where a file is looked for, and may be put by hand: in the mirror if there is one, the cache.

    Example:
    >>> places("hf:facebook/dinov2-small")[-1].as_posix().endswith("keras_vit/hf/facebook/dinov2-small")
    True
    """
    directories = (os.environ.get(MIRROR_VARIABLE), cache_directory())
    return [pathlib.Path(directory, address.replace(hub.PREFIX, "hf/", 1)) for directory in directories if directory]


def is_undamaged(path: pathlib.Path) -> bool:
    """Return whether a file has the SHA-256 that was recorded when it was downloaded, if one was."""
    return _recorded(path) in ("", sha256(path))


def find_here(address: str) -> str | None:
    """Return the path of weights that are on this machine; None for others. Nothing is downloaded.

    Example:
    >>> find_here("vit_models/augreg/none.npz")
    """
    found = next((str(place) for place in places(address) if place.exists()), None)
    return hub.find_here(address) if found is None and address.startswith(hub.PREFIX) else found


def verify(path: str) -> bool | None:
    """Return whether a file or a directory of the hub has the hashes that were stated; None if none is known.

    Example:
    >>> verify(keras_vit.save_checkpoint(model, "vit.npz"))
    """
    hashes = hub.stated_hashes(path) if os.path.isdir(path) else {path: _recorded(pathlib.Path(path))}
    hashes = {file: stated for file, stated in hashes.items() if stated}
    with Progress(f"Verifying {path}"):
        return all(sha256(file) == stated for file, stated in hashes.items()) if hashes else None


def _fetch_file(path: str) -> str:
    """Download a file to the cache, and return its path."""
    url, target = f"https://{HOST}/{urllib.parse.quote(path)}", places(path)[-1]
    logging.info("Downloading %s to %s.", url, target)
    try:
        with atomic_file(target) as temporary:
            _download(url, temporary)
            if not path.endswith(".csv"):
                _check_whole(temporary)
            digest = sha256(temporary)
            if _recorded(target) not in ("", digest):
                raise OSError(f"its SHA-256 is not the recorded one; if the owners changed it, delete {target}.sha256")
            write_text(f"{target}.sha256", f"{digest}  {target.name}\n")
    except (OSError, http.client.HTTPException) as error:
        mirror = os.environ.get(MIRROR_VARIABLE)
        mirror = f"{mirror} ({MIRROR_VARIABLE})" if mirror else f"a directory that {MIRROR_VARIABLE} names"
        raise OSError(
            f"Could not fetch {url} ({error}). Without a network, fetch it elsewhere and put it at {target}, or below "
            f"{mirror}, as {path}."
        ) from error
    return str(target)


def _check_whole(path: str) -> None:
    """Refuse a download that is not a whole archive of NumPy or file of safetensors."""
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
    """Return the SHA-256 of the first download of a file; empty without a record."""
    record = pathlib.Path(f"{path}.sha256")
    return record.read_text(errors="replace").partition(" ")[0] if record.is_file() else ""


def _download(url: str, path: str) -> None:
    """Write a file of a server, or fail: a page, another size or MD5 than the server states, too large or too slow."""
    started, md5 = time.monotonic(), hashlib.md5(usedforsecurity=False)
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as response, open(path, "wb") as file:
        if response.headers.get_content_type() == "text/html":
            raise OSError("the server returned a page instead of the file")
        stated = response.headers.get("Content-Length") or "0"
        if not re.fullmatch(r"[0-9]{1,15}", stated):
            raise OSError(f"the Content-Length is not a number of bytes: {stated[:100]!r}")
        size = int(stated)
        with Progress("Downloading", max(size // 2**20, 1) if size else None, unit="MiB") as bar:
            while block := response.read1(_BLOCK_BYTES):  # what has arrived: `read` waits for the whole block
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
