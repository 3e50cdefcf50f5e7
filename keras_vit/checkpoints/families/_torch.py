"""Shared code for the families of PyTorch projects: rules of layers, limits, and entries of configurations."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from absl import logging

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout, variable_shapes
from keras_vit.checkpoints.formats.tensors import CheckpointError, TensorSource
from keras_vit.checkpoints.rules import (
    CONV,
    DENSE,
    HEADS_BIAS,
    HEADS_IN,
    HEADS_OUT,
    SAME,
    Rule,
    Transform,
    bind_stored,
    fused,
    rule,
)

ATTENTION = "MultiHeadDotProductAttention_0"
# Number of heads by the model's width, for published models whose heads are not 64 wide.
_HEADS_BY_WIDTH = {1152: 16, 1280: 16, 1408: 16, 1664: 16, 1792: 16}

# Activation names in other projects, mapped to the names in this package.
ACTIVATIONS: Mapping[str, str] = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_tanh", "gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"),
    **dict.fromkeys(("quick_gelu", "quickgelu"), "quick_gelu"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    **{name: name for name in ("relu", "tanh", "selu", "mish")},
}
WRITTEN_ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh", "selu", "mish")
HEADLESS_DEIT = "its headless DeiT does not average the two tokens"


@dataclasses.dataclass(frozen=True)
class Names:
    """Names of a model's tensors. The names of a block's parts are relative to `block`."""

    norms: tuple[str, str]
    heads: tuple[str, ...]  # the projections to query, key and value, or one projection to all three
    out: str
    mlp: tuple[str, ...]
    block: str = ""
    embedding: str = ""  # the convolution that embeds the patches
    tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)  # variables by stored name, in the same shape
    encoder_norm: str = ""
    scales: tuple[str, ...] = ()  # layer scales
    gated: tuple[str, ...] = ()  # SwiGLU: gate, up and down projections; gate and up may be one tensor


def model_rules(names: Names, body: str) -> list[Rule]:
    """Return the rules of a model without its head. All stored names begin with `body`."""
    return [
        *(rule(f"{body}{stored}", variable) for stored, variable in names.tokens.items()),
        *conv(f"{body}{names.embedding}", "embedding"),
        *block_rules(names, f"{body}{names.block}", "encoderblock_{i}"),
        *norm(f"{body}{names.encoder_norm}", "encoder_norm"),
    ]


def block_rules(names: Names, stored: str, block: str) -> list[Rule]:
    """Return the rules of the blocks."""
    attention = f"{block}/{ATTENTION}"
    parts = [f"{attention}/{part}" for part in ("query", "key", "value")]
    result = heads_out(f"{stored}.{names.out}", f"{attention}/out")
    if len(names.heads) == 1:
        result += fused_heads(f"{stored}.{names.heads[0]}", parts)
    else:
        for name, part in zip(names.heads, parts, strict=True):
            result += heads_in(f"{stored}.{name}", part)
    for index, name in enumerate(names.norms):
        result += norm(f"{stored}.{name}", f"{block}/LayerNorm_{index}")
    result += gated_rules(names, stored, block)
    for index, name in enumerate(names.mlp):
        result += dense(f"{stored}.{name}", f"{block}/MlpBlock_0/Dense_{index}")
    return result + [rule(f"{stored}.{s}", f"{block}/LayerScale_{i}/gamma") for i, s in enumerate(names.scales)]


def gated_rules(names: Names, stored: str, block: str) -> list[Rule]:
    """Return the rules of a gated MLP, which must precede the rules of a plain MLP that match the same names."""
    parts = [f"{block}/SwiGLU_0/{part}" for part in ("gate", "up", "down")]
    result = []
    for leaf, kernel, transform in (("weight", "kernel", DENSE), ("bias", "bias", SAME)):
        stored_names = [f"{stored}.{name}.{leaf}" for name in names.gated]
        variables = [f"{part}/{kernel}" for part in parts]
        if len(stored_names) == 3:
            result.append(rule(stored_names, variables, transform))
        elif stored_names:
            result.append(rule(stored_names, variables, _packed(transform)))
    return result


def _packed(inner: Transform) -> Transform:
    """Return the transform of a gated MLP that stores the gate and up projections as one array."""
    both = fused(inner, 2)
    return Transform(
        lambda arrays, heads: (*both.read(arrays[:1], heads), *inner.read(arrays[1:], heads)),
        lambda arrays: (*both.write(arrays[:2]), *inner.write(arrays[2:])),
    )


def unused(stored: str, beside: str, variable: str, ndim: int) -> Rule:
    """Return the rule of a token and the unused token `beside`. Reading skips `beside`, and writing stores zeros."""
    zeros = lambda token: np.zeros_like(token).reshape((1,) * (ndim - 1) + token.shape[-1:])  # noqa: E731
    return rule((stored, beside), variable, Transform(lambda arrays, _: arrays[:1], lambda a: (a[0], zeros(a[0]))))


def norm(stored: str, variable: str) -> list[Rule]:
    """Return the rules of a layer or group norm."""
    return [rule(f"{stored}.weight", f"{variable}/scale"), rule(f"{stored}.bias", f"{variable}/bias")]


def _layer(kernel: Transform, bias: Transform = SAME) -> Callable[[str, str], list[Rule]]:
    """Return a function that makes the rules of a layer from its stored name and the name of the model's layer."""
    return lambda stored, variable: [
        rule(f"{stored}.weight", f"{variable}/kernel", kernel),
        rule(f"{stored}.bias", f"{variable}/bias", bias),
    ]


dense = _layer(DENSE)
conv = _layer(CONV)
heads_in = _layer(HEADS_IN, HEADS_BIAS)  # projection to query, key or value
heads_out = _layer(HEADS_OUT)


def fused_heads(stored: str, parts: Sequence[str], leaves: tuple[str, str] = (".weight", ".bias")) -> list[Rule]:
    """Return the rules of projections (query, key, value) that are stored as one matrix."""
    return [
        rule(f"{stored}{leaves[0]}", [f"{part}/kernel" for part in parts], fused(HEADS_IN, len(parts))),
        rule(f"{stored}{leaves[1]}", [f"{part}/bias" for part in parts], fused(HEADS_BIAS, len(parts))),
    ]


def find_body(source: TensorSource, anchor: str, hints: Hints) -> str | None:
    """Return the prefix of the model in a file that contains a tensor named `anchor`, or None without a model."""
    found = [name.removesuffix(anchor) for name in source.tensors if name.endswith(anchor)]
    found = [prefix for prefix in found if prefix == "" or prefix.endswith(".")]
    inside = [prefix for prefix in found if prefix.startswith(hints.prefix or "")]
    if hints.prefix in found:  # drop the models inside the requested model
        inner = tuple(prefix for prefix in inside if prefix != hints.prefix)
        source.tensors = {name: tensor for name, tensor in source.tensors.items() if not name.startswith(inner)}
        inside = [hints.prefix]
    if len(inside) > 1:  # such as student and teacher, or a moving average of the weights
        raise CheckpointError(
            f"{source.path} contains several models. Pass the prefix of one of them, such as "
            f"prefix={inside[0]!r}: {', '.join(map(repr, inside))[:600]}."
        )
    return inside[0] if inside else None


def bind(
    source: TensorSource,
    layout: Layout,
    rules: list[Rule],
    hints: Hints,
    projection: str,
    stated: tuple[str, Any] | None = None,
    ignored: Set[str] = frozenset(),
    kind: str = "vit",
) -> Checkpoint:
    """Bind the tensors of a file, and return the checkpoint with the arguments inferred from the tensors.

    `projection` is the stored name of the patch embedding's kernel. `stated` is the name and value of the
    configuration's number of attention heads, or None to infer the number. `ignored` tensors are skipped.
    """
    assumed: dict[str, str] = {}
    if stated is not None:
        name, heads = stated
        if type(heads) is not int or not 0 < heads < 2**31:
            raise CheckpointError(f"{source.path}: {name} must be a positive integer. Received: {str(heads)[:60]!r}.")
    else:
        width = (source.tensors[projection].shape or (0,))[0]
        heads, assumed["num_heads"] = _guess_heads(source, width, hints.wanted.get("num_heads"))
    bindings, unexpected = bind_stored(rules, [name for name in source.tensors if name not in ignored])
    if layout.prefix:  # skip the other parts of a larger model
        inside = (layout.prefix, f"{layout.outer}classifier.")  # adapters may rename a classifier
        ignored = {*ignored, *(name for name in unexpected if not name.startswith(inside))}
        unexpected = [name for name in unexpected if name not in ignored]
    shapes = variable_shapes(source, bindings, heads)
    arguments = architecture.infer_vit(shapes, heads, source.path)
    if arguments.get("output_projection", "none") == "none":
        names = ", ".join(unexpected)[:600]
        raise CheckpointError(f"{source.path} is incomplete, or its blocks have unknown names. Unknown names: {names}.")
    if arguments["distillation_token"] and "head_dist/kernel" not in shapes:
        if arguments["include_top"] and (layout.family == "timm" or layout.position == "teacher"):
            raise CheckpointError(f"{source.path} is incomplete: it has no head for its distillation token.")
        arguments["distillation_token"] = "unused"  # the token passes through the blocks, but no head reads it
    found = sorted(ignored & source.tensors.keys())
    return Checkpoint(
        source, layout, bindings, shapes, arguments, assumed=assumed, unexpected=unexpected, ignored=found, kind=kind
    )


def _guess_heads(source: TensorSource, width: int, given: int | None) -> tuple[int, str]:
    """Choose a number of heads if the file's configuration does not specify it. Return the number and the reason."""
    noted = source.metadata.get("arguments", {}).get("num_heads")
    if type(noted) is int and noted > 0:
        heads, reason = noted, "the file's metadata has it"
    elif given:
        heads, reason = given, "the model has it"
    elif width in _HEADS_BY_WIDTH:
        heads, reason = _HEADS_BY_WIDTH[width], f"the published models of width {width} have it"
    elif width and width % 64 == 0:
        heads, reason = width // 64, "heads are usually 64 wide"
    else:
        heads, reason = 0, ""
    if not heads or width % heads:
        raise CheckpointError(
            f"{source.path} does not specify how many attention heads share its width of {width}. Pass num_heads=..., "
            "or put the model's config.json next to the file."
        )
    return heads, reason


def activation(name: Any, path: str) -> str:
    """Convert another project's activation name to this package's name."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise CheckpointError(f"{path}: unknown activation {str(name)[:60]!r}. Known: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def biases(value: Any) -> tuple[bool, bool, bool]:
    """Return whether query, key and value have biases."""
    query, key, value = value if isinstance(value, (tuple, list)) else (value,) * 3
    return query, key, value


def ratio(width: int, hidden_size: int) -> float:
    """Return a ratio for which `int(hidden_size * ratio)`, which other projects compute, equals `width`."""
    exact = width / hidden_size
    return exact if int(hidden_size * exact) == width else (width + 0.5) / hidden_size


def number(value: Any, lowest: float, highest: float, where: str) -> float:
    """Return a value of a configuration after checking that the value is a number in a range."""
    if not isinstance(value, (int, float)) or not lowest < value < highest:
        raise CheckpointError(f"{where} must be a number in ({lowest}, {highest}). Received: {str(value)[:40]!r}.")
    return float(value)


def label_names(source: TensorSource, classes: int) -> tuple[str, ...] | None:
    """Return the class names in `config.json`, or None if there are no names."""
    names = (source.config or {}).get("label_names")
    if not isinstance(names, list) or not classes:
        return None
    if len(names) != classes or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{source.path}: label_names in config.json must name {classes} classes.")
    return tuple(names)


def note_missing_config(path: str) -> None:
    """Warn that a file has no configuration."""
    logging.warning("%s has no config.json next to it; its project's defaults are assumed.", path)
