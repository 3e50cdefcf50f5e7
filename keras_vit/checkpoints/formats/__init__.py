"""File formats, which give access to the tensors of a file by name. The format is detected from the file's content."""

import os
from typing import Any

from absl import logging

from keras_vit.checkpoints.formats.keras import KerasSource, open_zip
from keras_vit.checkpoints.formats.safetensors import SafetensorsSource, ShardedSource
from keras_vit.checkpoints.formats.tensors import MAX_JSON_BYTES, PICKLE, CheckpointError, TensorSource, parse_json

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def open_source(path: str, config: str | os.PathLike[str] | dict | None = None) -> TensorSource:
    """Open a checkpoint file or directory, and read its headers. The caller must close the source."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no checkpoint at {path!r}.")
    is_directory = os.path.isdir(path)
    file = _file_in(path) if is_directory else path
    directory, stem = os.path.dirname(file), None if is_directory else _stem(path)
    source = _open_file(file)
    if source.config is None:
        try:
            source.config = _config(source, directory, stem, config)
            source.preprocessor = _find_document(source, "preprocessor_config.json", directory, stem)
        except BaseException:
            source.close()
            raise
    return source


def _config(source: TensorSource, directory: str, stem: str | None, config: Any) -> dict[str, Any] | None:
    """Return the first available configuration: from the caller, from the copy in the file, or from a separate file.

    The copy was written together with the tensors, so the copy always matches the tensors.
    """
    if isinstance(config, dict):
        return config
    if config is not None:
        if not os.path.isfile(config):
            raise FileNotFoundError(f"There is no configuration at {str(config)!r}.")
        return _read_document(config)
    copy, beside = source.metadata.get("config"), _find_document(source, "config.json", directory, stem)
    if not isinstance(copy, dict):
        return beside
    if beside not in (None, copy):
        logging.warning("%s: its copy of config.json is used, not the file next to it (config=...).", source.path)
    return copy


def _file_in(path: str) -> str:
    """Return the path of the checkpoint in a directory."""
    for name in (_SINGLE, _INDEX):
        if os.path.isfile(os.path.join(path, name)):
            return os.path.join(path, name)
    names = sorted(os.listdir(path))
    tensors = [name for name in names if name.endswith((".safetensors", ".npz", ".keras"))]
    if len(tensors) == 1:
        return os.path.join(path, tensors[0])
    if any(name.endswith((".bin", ".pt", ".pth", ".ckpt")) for name in names):
        raise CheckpointError(PICKLE.format(path=path))
    if tensors:
        raise CheckpointError(f"{path} has {len(tensors)} checkpoints. Pass one of them: {', '.join(tensors[:10])}.")
    raise CheckpointError(
        f"{path} is a directory without a checkpoint. Expected {_SINGLE}, {_INDEX}, or one .safetensors, .npz or "
        f".keras file. Received: {f'{len(names)} other files, such as {names[0]}' if names else 'an empty directory'}."
    )


def _open_file(path: str) -> TensorSource:
    with open(path, "rb") as file:
        head = file.read(16)
    if not head:
        raise CheckpointError(f"{path} is empty. Fetch it again.")
    if head[:4] == b"PK\x03\x04":
        return open_zip(path)
    if head[:8] == b"\x89HDF\r\n\x1a\n":
        return KerasSource(path)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= MAX_JSON_BYTES:
        return SafetensorsSource(path)  # checked before pickles: a header of 128 bytes begins like a pickle
    if head[:1] == b"\x80" and head[1:2] < b"\x06" and len(head) > 1:
        raise CheckpointError(PICKLE.format(path=path))
    if head.lstrip()[:1] == b"{":
        return ShardedSource(path)
    if head[:4] == b"PK\x05\x06":
        raise CheckpointError(f"{path} is an empty archive. Fetch it again.")
    raise CheckpointError(
        f"{path} is not a supported checkpoint (.npz, .safetensors, .keras, .weights.h5). Its first bytes are "
        f"{head[:8]!r}. A downloaded file may be an error page or a Git LFS pointer."
    )


def _stem(path: str) -> str:
    name = os.path.basename(path)
    for suffix in (".safetensors.index.json", ".safetensors"):
        name = name.removesuffix(suffix)
    return name


def _find_document(source: TensorSource, name: str, directory: str, stem: str | None) -> dict[str, Any] | None:
    """Return the JSON object in `STEM_NAME` next to the tensors, which belongs to a single file, or else in `NAME`."""
    candidates = ([f"{stem}_{name}"] if stem is not None else []) + [name]
    paths = [os.path.join(directory, candidate) for candidate in candidates]
    found = next(filter(os.path.isfile, paths), None)
    source.files += [found] if found else []
    return _read_document(found) if found else None


def _read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    with open(path, "rb") as file:
        return parse_json(file.read(MAX_JSON_BYTES + 1), os.fspath(path))
