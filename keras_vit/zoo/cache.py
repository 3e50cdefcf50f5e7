"""Published files: in a mirror, in the cache, or downloaded from their owners.

Models of the Hugging Face hub are fetched by its own package, `huggingface_hub`, which reads from no other host.
`keras.utils.get_file` is not used for the others: it waits without a time limit for a server that stalls, and it writes
under the final name, where another process finds half of a file.
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

from absl import logging

from keras_vit import _checks
from keras_vit._io import atomic_file, sha256, write_text
from keras_vit._progress import Progress
from keras_vit.checkpoints import CheckpointError
from keras_vit.checkpoints.formats import hub_hint, open_source
from keras_vit.zoo.published import PublishedWeights, list_weights

MIRROR_VARIABLE = "KERAS_VIT_WEIGHTS_DIR"
_HOST = "storage.googleapis.com"
_HUB = "hf://"
_HUB_ADDRESS = re.compile(r"(?:hf://|https://huggingface\.co/)([\w.-]+/[\w.-]+(?:@[\w./-]+)?)")
# All that a model is read from: no pickled weights of PyTorch.
_FILES_OF_HUB = ("config.json", "preprocessor_config.json", "model*.safetensors", "model.safetensors.index.json")
_TIMEOUT = 60  # seconds without a byte, and until the average speed counts
_BYTES_PER_SECOND = 64 << 10  # A slower download is given up.
_MAX_BYTES = 8 << 30  # twice the largest published file
_BLOCK_BYTES = 2**20
_FILE_SUFFIXES = (".npz", ".safetensors", ".keras", ".h5", ".json")
# The pretraining of an AugReg file is part of its name: model, data, epochs and recipe.
_AUGREG_STEM = re.compile(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*-i(21|1)k(_30)?-[\w.+-]+")


def resolve(model: str, weights: str | os.PathLike[str]) -> str:
    """Return the path of a checkpoint, and download it if necessary.

    Args:
        model: Name of the model, as in `keras_vit.list_models()`, or of its constructor.
        weights: The path of a checkpoint, a name of `keras_vit.list_weights(model)`, the name of an AugReg file (a
            value of the columns `filename` or `adapt_filename` of its index), a `gs://` or `https://` address, or a
            model of the Hugging Face hub: `hf://OWNER/NAME`, with `@REVISION` to pin a tag or commit.

    Returns:
        A path that `keras_vit.load_checkpoint` reads.

    Raises:
        ValueError: If `weights` is none of these; the message lists the names.
        OSError: If the file can neither be found nor fetched; the message names it and its address.
        ImportError: If a model of the hub is requested without the extra `[hub]`.

    Example:
    >>> path = resolve("ViT-B/16", "augreg")  # downloaded once  # doctest: +SKIP
    >>> path = resolve("ViT-B/16", keras_vit.save_checkpoint(model, "vit.npz"))
    >>> path
    'vit.npz'
    """
    address = check_weights(model, weights)
    return os.fspath(weights) if address is None else fetch(address)


def check_weights(model: str, weights: str | os.PathLike[str]) -> str | None:
    """Return what `fetch` takes for published weights, or None for the path of a checkpoint. Nothing is downloaded.

    Example:
    >>> check_weights("ViT-S/16", "augreg").startswith("vit_models/augreg/S_16")
    True
    """
    weights = _checks.path("weights", weights)
    if os.path.exists(weights):
        return None
    entry = find(model, weights)
    if entry is not None:
        return entry.path
    if hub := _HUB_ADDRESS.fullmatch(weights):
        return _HUB + hub[1]
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
        raise ValueError(f"Weights are fetched only from {_HOST}. Received: {address!r}. Download it; pass its path.")
    path = urllib.parse.unquote(path)
    if any(part in ("", ".", "..") for part in path.split("/")) or "\\" in path:
        raise ValueError(f"{address!r} is not the address of a file.")
    return path


def fetch(path: str) -> str:
    """Return a local copy of published weights: from the mirror, the cache, or their owners.

    The mirror is the directory that the environment variable `KERAS_VIT_WEIGHTS_DIR` names. It has the files in the
    folders of their buckets, such as `vit_models/augreg/NAME.npz`. A download is put into the cache if it has the size
    and the MD5 that its server states and could be opened. Its SHA-256 is put beside it (`NAME.npz.sha256`), and
    compared at each use: a damaged file is downloaded again. Models of the hub (`hf://OWNER/NAME`) are in the cache of
    `huggingface_hub`; the SHA-256 that the hub states for their weights is compared, too.

    Example:
    >>> path = fetch("vit_models/augreg/index.csv")  # doctest: +SKIP
    """
    if path.startswith(_HUB):
        return _snapshot(path)
    mirror = os.environ.get(MIRROR_VARIABLE)
    places = [pathlib.Path(directory, path) for directory in (mirror, cache_directory()) if directory]
    for place in places:
        if place.is_file():
            if _recorded(place) in ("", sha256(place)):
                return str(place)
            logging.warning("%s is damaged: its SHA-256 is not the recorded one.", place)
    url, target = f"https://{_HOST}/{urllib.parse.quote(path)}", places[-1]
    logging.info("Downloading %s to %s.", url, target)
    try:
        with atomic_file(target) as temporary:
            _download(url, temporary)
            if not path.endswith(".csv"):
                open_source(temporary).close()
            digest = sha256(temporary)
            if _recorded(target) not in ("", digest):
                raise OSError(f"its SHA-256 is not the recorded one; if the owners changed it, delete {target}.sha256")
            write_text(f"{target}.sha256", f"{digest}  {target.name}\n")
    except (OSError, http.client.HTTPException, CheckpointError) as error:
        mirror = f"{mirror} ({MIRROR_VARIABLE})" if mirror else f"a directory that {MIRROR_VARIABLE} names"
        raise OSError(
            f"Could not fetch {url} ({error}). Without a network, fetch it elsewhere and put it at {target}, or below "
            f"{mirror}, as {path}."
        ) from error
    return str(target)


def cache_directory() -> pathlib.Path:
    """Return the directory of downloads, below Keras' own directory."""
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    return pathlib.Path(home, "keras_vit")


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
        progress = Progress("Downloading", max(size // 2**20, 1) if size else None, unit="MiB")
        while block := response.read1(_BLOCK_BYTES):  # what has arrived: `read` waits for the whole block
            file.write(block)
            md5.update(block)
            progress.update(file.tell() // 2**20)
            slow = file.tell() < _BYTES_PER_SECOND * (time.monotonic() - started - _TIMEOUT)
            if slow or max(file.tell(), size) > _MAX_BYTES:
                raise OSError(f"expected at most {_MAX_BYTES} bytes, and {_BYTES_PER_SECOND} bytes per second or more")
        progress.close()
        if size and file.tell() != size:
            raise OSError(f"download incomplete: {file.tell()} of {size} bytes")
        hashes = re.findall("md5=([^, ]+)", ",".join(response.headers.get_all("x-goog-hash", [])))
        if hashes not in ([], [base64.b64encode(md5.digest()).decode()]):
            raise OSError(f"download damaged: its MD5 is not the {hashes[0]!r} that the server states")


def _snapshot(address: str) -> str:
    """Return the directory of a model of the Hugging Face hub, downloaded at first use."""
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise ImportError(f"{address} needs: pip install 'keras-vision-transformers[hub]'") from error
    name, _, revision = address.removeprefix(_HUB).partition("@")
    for force in (False, True):
        snapshot = huggingface_hub.snapshot_download(
            name, revision=revision or None, allow_patterns=list(_FILES_OF_HUB), force_download=force
        )
        # The name of a large file's blob is the SHA-256 that the hub states.
        blobs = {file.name: file.readlink() for file in pathlib.Path(snapshot).glob("*") if file.is_symlink()}
        hashes = {name: blob.name for name, blob in blobs.items() if len(blob.name) == 64}
        damaged = [name for name, stated in hashes.items() if stated != sha256(os.path.join(snapshot, name))]
        if not damaged:
            return snapshot
    raise OSError(f"Could not fetch {address}: the SHA-256 of {', '.join(damaged)} is not the one that the hub states.")
