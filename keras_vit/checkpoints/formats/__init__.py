"""File formats: bytes to named tensors. A file is opened by its content, whatever its name."""

import os
import pathlib
import re
from typing import Any

from absl import logging

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats.keras import KerasSource
from keras_vit.checkpoints.formats.npz import NpzSource, open_archive
from keras_vit.checkpoints.formats.safetensors import SafetensorsSource, ShardedSource
from keras_vit.checkpoints.formats.tensors import MAX_JSON_BYTES, TensorSource, parse_json

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLE = (
    "{path} is a PyTorch pickle, which can run code when it is read; it is never loaded. Convert it where you trust "
    "it: `safetensors.torch.save_file(torch.load(path, weights_only=True, map_location='cpu'), 'model.safetensors')`, "
    'with `["model"]` behind `torch.load(...)` where the tensors are under that name, '
    "or fetch the .safetensors file of the same model."
)


def open_source(path: str | os.PathLike[str], config: str | os.PathLike[str] | dict | None = None) -> TensorSource:
    """Open a checkpoint file or directory. Only headers are read.

    Args:
        path: An `.npz`, `.safetensors`, `.safetensors.index.json`, `.keras` or `.weights.h5` file, or a directory with
            `model.safetensors` or its index.
        config: The model's `config.json`, as a path or an object. None to look for it beside the tensors.

    Returns:
        The open source, which the caller closes.

    Raises:
        CheckpointError: If it is none of these, damaged, or a format that can run code.
        FileNotFoundError: If there is nothing at `path`.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        source, directory, stem = _open_directory(path), path, None
    elif os.path.isfile(path):
        source, directory, stem = _open_file(path), os.path.dirname(path), _stem(path)
    else:
        raise FileNotFoundError(f"There is no checkpoint at {path!r}.{_hub_hint(path)}")
    if source.config is None:
        try:
            source.config = _config(source, directory, stem, config)
        except BaseException:
            source.close()
            raise
    return source


def _config(source: TensorSource, directory: str, stem: str | None, config: Any) -> dict[str, Any] | None:
    """Return the configuration: the one that the caller passes, else the copy in the file, else the file beside it.

    The copy was written together with the tensors. A reader never combines them with the configuration of others.
    """
    copy = source.metadata.get("config")
    if config is not None or not isinstance(copy, dict):
        return _find_config(directory, stem, config)
    try:
        agrees = _find_config(directory, stem, None) in (None, copy)
    except (CheckpointError, OSError):
        agrees = False
    if not agrees:
        logging.warning(
            "%s: the configuration beside the file differs from the copy that was saved in it, which is used. Pass "
            "config=... to use another.",
            source.path,
        )
    return copy


def _hub_hint(path: str) -> str:
    if re.fullmatch(r"[\w.-]+/[\w.-]+", path) is None or path.endswith((".npz", ".safetensors", ".keras", ".h5")):
        return ""
    return (
        " Models are not fetched from the Hugging Face Hub by name. Download it first: "
        f"huggingface_hub.snapshot_download({path!r}) returns a directory to pass here."
    )


def _open_directory(path: str) -> TensorSource:
    if os.path.isfile(os.path.join(path, _SINGLE)):
        return _open_file(os.path.join(path, _SINGLE))
    if os.path.isfile(os.path.join(path, _INDEX)):
        return ShardedSource(os.path.join(path, _INDEX))
    names = sorted(os.listdir(path))
    tensors = [name for name in names if name.endswith((".safetensors", ".npz", ".keras"))]
    if len(tensors) == 1:
        return _open_file(os.path.join(path, tensors[0]))
    if any(name.endswith((".bin", ".pt", ".pth", ".ckpt")) for name in names):
        raise CheckpointError(_PICKLE.format(path=path))
    raise CheckpointError(
        f"{path} holds neither {_SINGLE} nor {_INDEX}. Received: {', '.join(names[:10]) or 'an empty directory'}."
        + (" Name one of the files." if tensors else "")
    )


def _open_file(path: str) -> TensorSource:
    with open(path, "rb") as file:
        head = file.read(16)
    if not head:
        raise CheckpointError(f"{path} is empty. Fetch it again.")
    if head[:4] == b"PK\x03\x04":
        return _open_zip(path)
    if head[:8] == b"\x89HDF\r\n\x1a\n":
        return KerasSource(path)
    if head[:1] == b"\x80" and head[1:2] < b"\x06" and len(head) > 1:
        raise CheckpointError(_PICKLE.format(path=path))
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= MAX_JSON_BYTES:
        return SafetensorsSource(path)
    if head.lstrip()[:1] == b"{":
        return ShardedSource(path)
    if head[:4] == b"PK\x05\x06":
        raise CheckpointError(f"{path} is an empty archive. Fetch it again.")
    raise CheckpointError(
        f"{path} is no checkpoint of a known kind (.npz, .safetensors, .keras, .weights.h5). Its first bytes: "
        f"{head[:8]!r}. If it was downloaded, it may be an error page or a Git LFS pointer."
    )


def _open_zip(path: str) -> TensorSource:
    with open(path, "rb") as file, open_archive(file, os.path.getsize(path), path) as archive:
        names = archive.namelist()
    if "model.weights.h5" in names and "config.json" in names:
        return KerasSource(path)
    if any(name.endswith("data.pkl") for name in names):
        raise CheckpointError(_PICKLE.format(path=path))
    return NpzSource(path)


def _stem(path: str) -> str:
    name = os.path.basename(path)
    for suffix in (".safetensors.index.json", ".safetensors"):
        name = name.removesuffix(suffix)
    return name


def _find_config(directory: str, stem: str | None, config: Any) -> dict[str, Any] | None:
    if isinstance(config, dict):
        return config
    candidates = [pathlib.Path(directory, "config.json")]
    if stem is not None:
        candidates.insert(0, pathlib.Path(directory, f"{stem}_config.json"))
    if config is not None:
        candidates = [pathlib.Path(config)]
        if not candidates[0].is_file():
            raise FileNotFoundError(f"There is no configuration at {str(config)!r}.")
    for candidate in candidates:
        if candidate.is_file():
            with open(candidate, "rb") as file:
                return parse_json(file.read(MAX_JSON_BYTES + 1), str(candidate))
    return None
