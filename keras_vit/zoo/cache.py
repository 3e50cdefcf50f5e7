"""Published files: on disk, in a mirror, in the cache, or downloaded from their owners.

`keras.utils.get_file` is not used: it compares only a hash that is known in advance, waits without a time limit for a
server that stalls, prints to the standard output, and leaves half a file under the final name if the process is killed.
"""

import base64
import hashlib
import http.client
import os
import pathlib
import re
import urllib.parse
import urllib.request

from absl import logging

from keras_vit import _checks
from keras_vit._io import atomic_file
from keras_vit._progress import Progress
from keras_vit.checkpoints import CheckpointError
from keras_vit.checkpoints.formats import hub_hint, open_source
from keras_vit.zoo.published import PublishedWeights, list_weights

MIRROR_VARIABLE = "KERAS_VIT_WEIGHTS_DIR"
_HOST = "storage.googleapis.com"
_TIMEOUT = 60  # seconds without a byte
_BLOCK_BYTES = 2**20
_FILE_SUFFIXES = (".npz", ".safetensors", ".keras", ".h5", ".json")
# The pretraining of an AugReg file is part of its name: model, data, epochs and recipe.
_AUGREG_STEM = re.compile(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*-i(21|1)k(_30)?-[\w.+-]+")


def resolve(model: str, weights: str | os.PathLike[str]) -> str:
    """Return the path of a checkpoint, and download it if necessary.

    Args:
        model: Name of the model, as in `keras_vit.list_models()`, or of its constructor.
        weights: The path of a checkpoint, a name of `keras_vit.list_weights(model)`, the name of an AugReg file (a
            value of the columns `filename` or `adapt_filename` of its index), or a `gs://` or `https://` address.

    Returns:
        A path that `keras_vit.load_checkpoint` reads.

    Raises:
        ValueError: If `weights` is none of these; the message lists the names.
        OSError: If the file can neither be found nor fetched; the message names it and its address.

    Example:
    >>> path = resolve("ViT-B/16", "augreg")  # downloaded once  # doctest: +SKIP
    >>> path = resolve("ViT-B/16", keras_vit.save_checkpoint(model, "vit.npz"))
    >>> path
    'vit.npz'
    """
    path = check_weights(model, weights)
    return os.fspath(weights) if path is None else fetch(path)


def check_weights(model: str, weights: str | os.PathLike[str]) -> str | None:
    """Return bucket and file of published weights, or None for the path of a checkpoint. Nothing is downloaded.

    Example:
    >>> check_weights("ViT-S/16", "augreg").startswith("vit_models/augreg/S_16")
    True
    """
    if not isinstance(weights, (str, os.PathLike)):
        raise ValueError(f"`weights` must be a name or a path. Received: weights={weights!r}.")
    weights = os.fspath(weights)
    if os.path.exists(weights):
        return None
    entry = find(model, weights)
    if entry is not None:
        return entry.path
    if weights.startswith("https://huggingface.co/"):
        raise FileNotFoundError(f"There is no checkpoint at {weights!r}.{hub_hint(weights)}")
    if weights.startswith(("gs://", "https://")):
        return _path_of(weights)
    if _AUGREG_STEM.fullmatch(weights.removesuffix(".npz")):
        return f"vit_models/augreg/{weights.removesuffix('.npz')}.npz"
    if weights.endswith(_FILE_SUFFIXES) or os.sep in weights:
        raise FileNotFoundError(f"There is no checkpoint at {weights!r}.{hub_hint(weights)}")
    names = [entry.name for entry in list_weights(model)]
    hint = _checks.nearest(weights, names)
    if "imagenet" in weights.lower() and "21k" not in weights:  # as Keras calls a classifier of 1,000 classes
        entries = [entry for entry in list_weights(model) if entry.head == "imagenet2012"]
        best = max(entries, key=lambda entry: entry.accuracy or 0.0, default=None)
        hint = hint if best is None else f" Did you mean {best.name!r}?"
    raise ValueError(
        f"{model} has no published weights named {weights!r}.{hint} "
        f"Published: {', '.join(names) or 'none'}; or pass the path of a checkpoint."
    )


def find(model: str, weights: str) -> PublishedWeights | None:
    """Return the published weights of a name, or None if the model has none of that name.

    Example:
    >>> find("ViT-B/16", "augreg").resolution
    384
    """
    return next((entry for entry in list_weights(model) if entry.name == weights), None)


def _path_of(address: str) -> str:
    """Return bucket and file of an address, such as `gs://vit_models/sam/ViT-B_16.npz`."""
    parts = urllib.parse.urlsplit(address)
    path = parts.path.lstrip("/") if parts.scheme == "https" else f"{parts.netloc}{parts.path}"
    if parts.scheme == "https" and parts.netloc != _HOST:
        raise ValueError(
            f"Weights are fetched only from {_HOST}. Received: {address!r}. Download it and pass its path."
        )
    path = urllib.parse.unquote(path)
    if any(part in ("", ".", "..") for part in path.split("/")) or "\\" in path:
        raise ValueError(f"{address!r} is not the address of a file.")
    return path


def fetch(path: str) -> str:
    """Return a local copy of a published file: from the mirror, the cache, or its owners.

    The mirror is the directory that the environment variable `KERAS_VIT_WEIGHTS_DIR` names. It has the files in the
    folders of their buckets (`vit_models/augreg/NAME.npz`), without the bucket's name (`augreg/NAME.npz`), or flat
    (`NAME.npz`) where names tell them apart.

    A download is put in place after its size and hash were compared with what the server states, and the file could be
    opened. A cached file that cannot be opened is fetched again, once.

    Example:
    >>> path = fetch("vit_models/augreg/index.csv")  # doctest: +SKIP
    """
    mirror = os.environ.get(MIRROR_VARIABLE)
    cached = cache_directory() / path
    candidates = [cached]
    if mirror:
        below = path.split("/", 1)[1]
        names = [path, below]
        if _is_unmistakable(path):
            names.append(os.path.basename(path))
        candidates = [*(pathlib.Path(mirror, name) for name in names), cached]
    for candidate in candidates:
        if not candidate.is_file():
            continue
        problem = _problem(candidate, path) if candidate == cached else ""
        if not problem:
            return str(candidate)
        logging.warning("The file in the cache is not usable and is fetched again: %s", problem)
    return _download(path, cached, mirror)


def _is_unmistakable(path: str) -> bool:
    """Return whether the name of a file identifies it: `ViT-B_16.npz` exists in several sets."""
    return path.startswith(("vit_models/augreg/", "bit_models/")) and not path.endswith("index.csv")


def cache_directory() -> pathlib.Path:
    """Return the directory of downloads, below Keras' own directory."""
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    return pathlib.Path(home, "keras_vit")


def _download(path: str, target: pathlib.Path, mirror: str | None) -> str:
    url = f"https://{_HOST}/{urllib.parse.quote(path)}"
    logging.info("Downloading %s to %s.", url, target)
    try:
        with atomic_file(target) as temporary:
            _retrieve(url, temporary)
            if problem := _problem(temporary, path):
                raise OSError(f"the downloaded file failed verification: {problem}")
    except (OSError, http.client.HTTPException) as error:
        places = (
            f" or below {mirror} ({MIRROR_VARIABLE})" if mirror else f", or in a directory that {MIRROR_VARIABLE} names"
        )
        raise OSError(
            f"Could not fetch {url} ({error}). Without a network, fetch it elsewhere and put it at {target}{places}, "
            f"as {path}."
        ) from error
    return str(target)


def _retrieve(url: str, path: str) -> None:
    """Download a file and compare its size and hash with what the server states."""
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as response, open(path, "wb") as file:
        length = response.headers.get("Content-Length", "")
        expected = int(length) if length.isdigit() else None
        progress = Progress("Downloading", max(expected // 2**20, 1) if expected else None, unit="MiB")
        digest, received = hashlib.md5(usedforsecurity=False), 0
        while block := response.read(_BLOCK_BYTES):
            file.write(block)
            digest.update(block)
            received += len(block)
            progress.update(received // 2**20)
        progress.close()
        if expected is not None and received != expected:
            raise OSError(f"download incomplete: {received} of {expected} bytes")
        stated = re.search(r"md5=([\w+/=]+)", ",".join(response.headers.get_all("x-goog-hash") or ()))
        if stated and stated[1] != base64.b64encode(digest.digest()).decode():
            raise OSError("its MD5 is not the one that the server states")


def _problem(file: str | os.PathLike[str], path: str) -> str:
    """Return why a file cannot be the published one, an empty string if it may be."""
    if path.endswith(".csv"):
        with open(file, "rb") as table:
            return "" if b"filename" in table.readline(10_000) else "it is not a table of checkpoints"
    size = os.path.getsize(file) / 2**20
    published = next((entry.size_mib for entry in list_weights() if entry.path == path), None)
    if published and abs(size - published) > max(1.0, 0.01 * published):
        return f"it has {size:.0f} MiB, its owners state {published} MiB"
    try:
        open_source(file).close()
    except CheckpointError as error:
        return str(error)
    return ""
