"""Models of the Hugging Face hub by name: `hf:OWNER/NAME`, `hf:OWNER/NAME@REVISION`.

`huggingface_hub` downloads the models from the hub to its own cache. Only configurations and `.safetensors` files are
read, because the other files of weights are pickles.
"""

import functools
import os
import pathlib
import re
import sys
from typing import Any

from keras_vit.util import extras
from keras_vit.util.file_io import sha256
from keras_vit.util.progress import Progress

PREFIX = "hf:"
_NAME = re.compile(
    r"(?:hf:(?://)?|https://huggingface\.co/)([\w.-]+/[\w.-]+)(@\w[\w.-]*(?:/[\w.-]+?)*?)?(/[\w.-]+\.safetensors)?"
)
_DOCUMENTS = ("config.json", "preprocessor_config.json")
_WEIGHTS = ("model.safetensors", "model-?????-of-?????.safetensors", "model.safetensors.index.json")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")


def canonical_name(text: str) -> str | None:
    """Return the canonical name of a model of the hub, or None if the text does not begin like such a name."""
    if not text.startswith((PREFIX, "https://huggingface.co/")):
        return None
    found = _NAME.fullmatch(text)
    if found is None or {".", ".."} & set(re.split("[/:@]", text)):  # a name is also a path in the mirror and the cache
        raise ValueError(
            "A model of the Hugging Face hub is named hf:OWNER/NAME, with @REVISION to pin a tag or commit, and with "
            f"/FILE.safetensors if it has several files of weights. Received: {text!r}."
        )
    return PREFIX + "".join(part or "" for part in found.groups())


def _parts(location: str) -> tuple[str, str | None, str]:
    """Split the result of `canonical_name` into the name, the revision and the file."""
    found = _NAME.fullmatch(location)
    assert found is not None
    return found[1], (found[2] or "@")[1:] or None, (found[3] or "/")[1:]


@functools.cache
def fetch(location: str, folder: str) -> str:
    """Download a model at first use, and return its directory, or the path of the file that the name contains.

    Once per process, large files are compared with the hub's SHA-256. Errors mention `folder`, in which users can put
    the files manually.
    """
    name, revision, file = _parts(location)
    page = f"https://huggingface.co/{name}"
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ModuleNotFoundError as error:
        raise ImportError(f"{location} needs: {extras.install('hub')}. Or put its files into {folder}.") from error
    try:
        with Progress(f"Downloading {location}", enabled=not sys.stderr.isatty()):
            # Terminals show the hub client's progress bar.
            return _download(hub, location, name, revision, file)
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{location} is gated: accept its license at {page}, and log in with `hf auth login` (or set HF_TOKEN)."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"There is no model {name!r} on the Hugging Face hub. If it is private, log in with `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(f"{name!r} on the Hugging Face hub has no revision {revision!r}.") from error
    except _Unusable:
        raise
    except Exception as error:  # errors of the HTTP client, which differs between versions of the package
        reason = " ".join(str(error).split())[:300]
        raise OSError(
            f"Could not fetch {location} ({type(error).__name__}: {reason}). Without a network, download config.json, "
            f"preprocessor_config.json and model.safetensors from {page} elsewhere, and put them into {folder}."
        ) from error


def pinned(location: str, path: str) -> str:
    """Return a name with the downloaded commit as its revision, or unchanged if `path` is not in the hub's cache."""
    name, _, file = _parts(location)
    commit = os.path.basename(os.path.dirname(path) if os.path.isfile(path) else path)
    is_cached = re.fullmatch("[0-9a-f]{40}", commit) is not None
    return f"{PREFIX}{name}@{commit}{f'/{file}' if file else ''}" if is_cached else location


class _Unusable(OSError):
    """Raised for a model whose files cannot be read. The message needs no further text."""


def _download(hub: Any, location: str, name: str, revision: str | None, file: str) -> str:
    """Download a model, check its files, and return its directory or the path of the requested file."""
    for force in (False, True):
        folder = hub.snapshot_download(
            name,
            revision=revision,
            allow_patterns=[*_DOCUMENTS, *([file] if file else _WEIGHTS)],
            force_download=force,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
        if file and not os.path.isfile(os.path.join(folder, file)):
            raise _Unusable(f"{location} has no file {file!r}.")
        if not file and not any(pathlib.Path(folder).glob("model*.safetensors*")):
            return _download(hub, location, name, revision, _other_weights(hub, location, name, folder))
        hashes = stated_hashes(folder)
        if not (damaged := [os.path.basename(path) for path, stated in hashes.items() if sha256(path) != stated]):
            return os.path.join(folder, file) if file else folder
    raise _Unusable(f"Could not fetch {location}: the SHA-256 of {', '.join(damaged)} differs from the hub's SHA-256.")


def _other_weights(hub: Any, location: str, name: str, folder: str) -> str:
    """Return the name of the only file of weights, for a model without `model.safetensors`."""
    names = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT")).list_repo_files(name, revision=os.path.basename(folder))
    found = sorted(file for file in names if file.endswith(".safetensors") and "/" not in file)
    if len(found) == 1:
        return found[0]
    if found:
        raise _Unusable(
            f"{location} has {len(found)} files of weights. Pass one: {location}/{f', {location}/'.join(found)}."
        )
    pickles = [file for file in names if file.endswith(_PICKLES)]
    other = f" Its {pickles[0]} may run code when it is read, so it is not fetched." if pickles else ""
    raise _Unusable(
        f"{location} has no .safetensors file.{other} Convert the weights to safetensors, and pass their path."
    )


def find_local(location: str) -> str | None:
    """Return a model's directory or its requested file in the cache of `huggingface_hub`, or None if not cached."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError:
        return None
    name, revision, file = _parts(location)
    path = try_to_load_from_cache(name, file or "config.json", revision=revision)
    return None if not isinstance(path, str) else path if file else os.path.dirname(path)


def stated_hashes(folder: str) -> dict[str, str]:
    """Return the SHA-256 of each large file of a model: the name of its blob in the hub's cache."""
    blobs = {str(file): file.readlink().name for file in pathlib.Path(folder).glob("*") if file.is_symlink()}
    return {file: blob for file, blob in blobs.items() if len(blob) == 64}
