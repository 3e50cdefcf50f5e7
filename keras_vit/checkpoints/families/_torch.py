"""Names and limits that the families of PyTorch models share."""

from collections.abc import Mapping
from typing import Any

from absl import logging

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families.family import Config
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.rules import CONV, DENSE, HEADS_BIAS, HEADS_IN, HEADS_OUT, Rule, rule

ATTENTION = "MultiHeadDotProductAttention_0"
# Widths of published models whose heads are not 64 wide.
_HEADS_BY_WIDTH = {1152: 16, 1280: 16, 1408: 16, 1664: 16, 1792: 16}

# Names of activations there and here.
ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "quickgelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "selu": "selu",
    "mish": "mish",
}
WRITTEN_ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh", "selu", "mish")


def _is_headless_deit(config: Config) -> bool:
    return not config["include_top"] and config["distillation_token"] is True


HEADLESS_DEIT = (_is_headless_deit, "its headless DeiT does not average the two tokens")
ANY_SIZE = (lambda config: config["image_size"] is None, "its configuration needs an image_size")


def norm(stored: str, variable: str) -> list[Rule]:
    """Return the rules of a layer or group norm."""
    return [rule(f"{stored}.weight", f"{variable}/scale"), rule(f"{stored}.bias", f"{variable}/bias")]


def dense(stored: str, variable: str) -> list[Rule]:
    """Return the rules of a dense layer."""
    return [rule(f"{stored}.weight", f"{variable}/kernel", DENSE), rule(f"{stored}.bias", f"{variable}/bias")]


def conv(stored: str, variable: str) -> list[Rule]:
    """Return the rules of a convolution."""
    return [rule(f"{stored}.weight", f"{variable}/kernel", CONV), rule(f"{stored}.bias", f"{variable}/bias")]


def heads_in(stored: str, variable: str) -> list[Rule]:
    """Return the rules of a projection to heads: query, key or value."""
    return [
        rule(f"{stored}.weight", f"{variable}/kernel", HEADS_IN),
        rule(f"{stored}.bias", f"{variable}/bias", HEADS_BIAS),
    ]


def heads_out(stored: str, variable: str) -> list[Rule]:
    """Return the rules of the projection from heads."""
    return [rule(f"{stored}.weight", f"{variable}/kernel", HEADS_OUT), rule(f"{stored}.bias", f"{variable}/bias")]


def guess_heads(source: TensorSource, width: int, given: int | None) -> tuple[int, str]:
    """Return the number of heads of a file whose configuration does not say it, with the reason."""
    noted = source.metadata.get("arguments")
    noted = noted.get("num_heads") if isinstance(noted, dict) else None
    if type(noted) is int and noted > 0:
        heads, reason = noted, "it is noted in the file"
    elif given:
        heads, reason = given, "as the model has it"
    elif width in _HEADS_BY_WIDTH:
        heads, reason = _HEADS_BY_WIDTH[width], f"as the published models of width {width} have it"
    elif width and width % 64 == 0:
        heads, reason = width // 64, "heads are usually 64 wide"
    else:
        heads, reason = 0, ""
    if not heads or width % heads:
        raise CheckpointError(
            f"{source.path} does not say how many attention heads share its width of {width}. Pass num_heads=..., or "
            "put the model's config.json beside the file."
        )
    return heads, reason


def activation(name: Any, path: str) -> str:
    """Return the name of an activation in this package."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise CheckpointError(
            f"{path}: unknown activation {str(name)[:60]!r}. Known: {', '.join(sorted(ACTIVATIONS))}."
        )
    return ACTIVATIONS[name]


def positive(value: Any, name: str, path: str) -> int:
    """Return a positive integer of a configuration."""
    if type(value) is not int or not 0 < value < 2**31:
        raise CheckpointError(
            f"{path}: the configuration's {name} must be a positive integer. Received: {str(value)[:60]!r}."
        )
    return value


def label_names(source: TensorSource, classes: int) -> tuple[str, ...] | None:
    """Return the names of the classes in `config.json`, None if it does not name each."""
    names = (source.config or {}).get("label_names")
    if isinstance(names, list) and len(names) == classes and all(isinstance(name, str) for name in names):
        return tuple(names)
    return None


def note_missing_config(path: str) -> None:
    """Log that a file has no configuration."""
    logging.warning("%s has no config.json beside it; its project's defaults are assumed.", path)
