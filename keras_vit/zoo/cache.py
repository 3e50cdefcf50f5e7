"""Published files: in a mirror, in the cache, or downloaded from their owners.

Models of the Hugging Face hub are fetched by its own package, `huggingface_hub`, which reads from no other host.
`keras.utils.get_file` is not used for the others: it waits without a time limit for a server that stalls, and it writes
under the final name, where another process finds half of a file.
"""

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
_HUB = "hf://"
_HUB_ADDRESS = re.compile(r"(?:hf://|https://huggingface\.co/)([\w.-]+/[\w.-]+(?:@[\w./-]+)?)")
# All that a model is read from: no pickled weights of PyTorch.
_FILES_OF_HUB = ("config.json", "preprocessor_config.json", "model*.safetensors", "model.safetensors.index.json")
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
    folders of their buckets, such as `vit_models/augreg/NAME.npz`. A download is put into the cache after it arrived
    complete and could be opened. Models of the hub (`hf://OWNER/NAME`) are in the cache of `huggingface_hub`.

    Example:
    >>> path = fetch("vit_models/augreg/index.csv")  # doctest: +SKIP
    """
    if path.startswith(_HUB):
        return _snapshot(path)
    mirror = os.environ.get(MIRROR_VARIABLE)
    places = [pathlib.Path(directory, path) for directory in (mirror, cache_directory()) if directory]
    for place in places:
        if place.is_file():
            return str(place)
    url, target = f"https://{_HOST}/{urllib.parse.quote(path)}", places[-1]
    logging.info("Downloading %s to %s.", url, target)
    try:
        with atomic_file(target) as temporary:
            _download(url, temporary)
            if not path.endswith(".csv"):
                open_source(temporary).close()
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


def _download(url: str, path: str) -> None:
    """Write a file of a server; an error if it is a page instead, or shorter than the server states."""
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as response, open(path, "wb") as file:
        if response.headers.get_content_type() == "text/html":
            raise OSError("the server returned a page instead of the file")
        size = int(response.headers.get("Content-Length") or 0)
        progress = Progress("Downloading", max(size // 2**20, 1) if size else None, unit="MiB")
        while block := response.read(_BLOCK_BYTES):
            file.write(block)
            progress.update(file.tell() // 2**20)
        progress.close()
        if size and file.tell() != size:
            raise OSError(f"download incomplete: {file.tell()} of {size} bytes")


def _snapshot(address: str) -> str:
    """Return the directory of a model of the Hugging Face hub, downloaded at first use."""
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise ImportError(f"{address} needs: pip install 'keras-vision-transformers[hub]'") from error
    name, _, revision = address.removeprefix(_HUB).partition("@")
    return huggingface_hub.snapshot_download(name, revision=revision or None, allow_patterns=list(_FILES_OF_HUB))
