"""Files that start the official TF Serving image: its configuration, Docker Compose and Kubernetes.

The files are templates in `assets/`, where `@{name}` marks a value.
"""

import hashlib
import importlib.resources
import os
import re
import string
import textwrap
from collections.abc import Iterable

import tensorflow as tf

from keras_vit import _io

FOLDER = "deployment"
FILES = ("models.config", "batching.config", "monitoring.config", "docker-compose.yml", "kubernetes.yaml")
IMAGE = "tensorflow/serving:2.20.0"
_SUFFIX = "-serving"
_MAX_LABEL = 63  # of names and labels in Kubernetes
_MIB = 1 << 20


class _Template(string.Template):
    delimiter = "@"


def check_name(name: str) -> str:
    """Return a model name that is safe in paths and URLs."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9_.]{0,61}[a-z0-9])?", name):
        raise ValueError(
            "The name of a served model must be made of small letters, digits, '-', '_' and '.', begin and end with a "
            f"letter or digit and have at most 63 characters. Received: {name!r}. Choose one with --name."
        )
    return name


def check_batch_sizes(batch_sizes: Iterable[int]) -> list[int]:
    """Return allowed batch sizes in ascending order."""
    sizes = sorted(set(batch_sizes))
    if not sizes or sizes[0] < 1:
        raise ValueError(f"Expected batch sizes of at least 1. Received: {batch_sizes}.")
    return sizes


def write(base: str, name: str, batch_sizes: Iterable[int], model_bytes: int) -> str:
    """Write all files into `BASE/deployment`, which the server ignores because its name is no number."""
    folder = os.path.join(base, FOLDER)
    for file_name, text in render(name, batch_sizes, model_bytes).items():
        _io.write_text(os.path.join(folder, file_name), text)
    return folder


def render(name: str, batch_sizes: Iterable[int], model_bytes: int) -> dict[str, str]:
    """Return the content of all files by name."""
    sizes = check_batch_sizes(batch_sizes)
    request, limit = memory(model_bytes, sizes[-1])
    values = {
        "name": check_name(name),
        "resource": resource_name(name),
        "image": IMAGE,
        "tensorflow": tf.__version__,
        "max_batch_size": sizes[-1],
        "allowed_batch_sizes": "\n".join(f"allowed_batch_sizes: {size}" for size in sizes),
        "memory_request": request,
        "memory_limit": limit,
        "compose_arguments": _arguments(f"/models/{name}/{FOLDER}", indent=6),
        "kubernetes_arguments": _arguments("/config", indent=12),
    }
    files = {}
    for file_name in FILES:  # the configuration comes before the files that contain it
        text = importlib.resources.files(__package__).joinpath("assets", file_name).read_text(encoding="utf-8")
        files[file_name] = _Template(text).substitute(values)
        values[file_name.replace(".", "_")] = textwrap.indent(files[file_name].rstrip("\n"), " " * 4)
    return files


def resource_name(name: str) -> str:
    """Return the name of a model as a DNS label (RFC 1035), short enough for `NAME-serving` to be one.

    Names that are no such label get a hash of theirs, so that two of them never collide.

    References:
        https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
    """
    limit = _MAX_LABEL - len(_SUFFIX)
    if re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    label = re.sub("[^a-z0-9]+", "-", f"model-{name}" if not name[:1].isalpha() else name)
    return f"{label[: limit - len(digest) - 1].strip('-')}-{digest}"


def memory(model_bytes: int, max_batch_size: int) -> tuple[int, int]:
    """Return the memory that a server requests and its limit, in MiB.

    The limit covers the process (1 GiB), two versions during an update and a copy of one while it is read, and 64 MiB
    per image of the largest batch: decoded, resized and as activations.
    """
    model = model_bytes / _MIB
    return _round_up(512 + 1.5 * model), _round_up(1024 + 3 * model + 64 * max_batch_size)


def _round_up(mebibytes: float) -> int:
    return 256 * -(-int(mebibytes) // 256)


def _arguments(folder: str, indent: int) -> str:
    arguments = (
        "--port=8500",
        "--rest_api_port=8501",
        f"--model_config_file={folder}/models.config",
        "--enable_batching=true",
        f"--batching_parameters_file={folder}/batching.config",
        f"--monitoring_config_file={folder}/monitoring.config",
    )
    return textwrap.indent("\n".join(f"- {argument}" for argument in arguments), " " * indent)
