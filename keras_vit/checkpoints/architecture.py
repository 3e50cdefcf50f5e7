"""Infer a model's architecture from the shapes of its variables, and compare the result with a file's description."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from keras_vit.checkpoints.formats.tensors import CheckpointError, TensorSource
from keras_vit.models.config import plain
from keras_vit.models.vit_options import STANDARD

Shapes = Mapping[str, tuple[int, ...]]
Arguments = Mapping[str, Any]
_NONE: Arguments = {}
TABLE = "posembed_input/pos_embedding"
DECODER_TABLE = "decoder_posembed/pos_embedding"

# Arguments that the shapes determine. A file's description must agree with the shapes.
SHOWN = (
    *("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim", "resnet_blocks", "class_token"),
    *("num_registers", "qkv_bias", "norm_after_pooling", "patch_norm", "head_dim", "output_projection"),
    *("mlp", "qk_norm", "norm_before_blocks"),
    *("channels", "include_top", "representation_size", "block_sizes", "width_factor"),
)
# Arguments that the shapes determine only in part. Each function returns the part that is visible in the shapes.
PARTLY_SHOWN: Mapping[str, Callable[[Any], bool]] = {
    "pooling": lambda value: value == "map",
    "position_embedding": lambda value: value == "learned",
    "layer_scale": lambda value: value is not None,
    "distillation_token": bool,
}
_QUERY = "encoderblock_0/MultiHeadDotProductAttention_0/query/kernel"
_DENSE, _GATE = "encoderblock_0/MlpBlock_0/Dense_0/kernel", "encoderblock_0/SwiGLU_0/gate/kernel"
# Variables from which the arguments are inferred, by their number of dimensions.
_RANKS = {
    1: ("head/bias", "head_dist/bias", "pre_logits/bias"),
    2: ("head/kernel", "head_dist/kernel", "pre_logits/kernel", _DENSE, _GATE),
    3: ("cls/cls", "dist/dist", "registers/registers", _QUERY, TABLE),
    4: ("embedding/kernel", "conv_root/kernel", "root_block/conv_root/kernel"),
}
MAX_BLOCKS = 1024
# Default arguments, which the type or the description of a model can override.
ALWAYS: Mapping[str, Any] = {"output_projection": "bias", "qkv_bias": True, "position_embedding": True}


def infer_vit(shapes: Shapes, heads: int | None, path: str) -> dict[str, Any]:
    """Infer the constructor's arguments from the variables of a Vision Transformer."""
    _check_ranks(shapes, path)
    kernel = shapes.get("embedding/kernel")
    if kernel is None:
        raise CheckpointError(f"{path} has no patch embedding of shape (height, width, channels, hidden_size).")
    blocks = resnet_blocks(shapes, path) if "conv_root/kernel" in shapes else None
    depth = _count({int(m[1]) for n in shapes if (m := re.match(r"encoderblock_(\d{1,6})/", n))}, 0, "block", path)
    if depth and not (_QUERY in shapes and {_DENSE, _GATE} & shapes.keys()):
        raise CheckpointError(f"{path} is incomplete: block 0 lacks the kernel of its query or of its MLP.")
    query = shapes.get(_QUERY, (0, heads, 0))
    head = shapes.get("head/kernel")
    pre_logits = shapes.get("pre_logits/kernel")
    channels = shapes["conv_root/kernel"][2:3] if blocks is not None else kernel[2:3]
    found: dict[str, Any] = {
        "patch_size": plain((kernel[0], kernel[1])),
        "hidden_size": kernel[3],
        "num_layers": depth,
        "num_heads": query[1],
        "resnet_blocks": blocks,
        "classes": head[-1] if head else 0,
        "include_top": head is not None,
        "pooling": "map" if "MAPHead_0/probe" in shapes else "token" if "cls/cls" in shapes else "gap",
        "class_token": "cls/cls" in shapes,
        "distillation_token": "dist/dist" in shapes,
        "representation_size": pre_logits[-1] if pre_logits else None,
        "position_embedding": "learned" if TABLE in shapes else "none",
        "num_registers": shapes["registers/registers"][1] if "registers/registers" in shapes else 0,
        "channels": channels[0],
        "layer_scale": 1.0 if "encoderblock_0/LayerScale_0/gamma" in shapes else None,
        "norm_after_pooling": "fc_norm/scale" in shapes,
        "patch_norm": "embedding/LayerNorm_0/scale" in shapes,
        "norm_before_blocks": "pre_norm/scale" in shapes,
    }
    return found | _infer_block(shapes, kernel[3]) if depth else found


def _infer_block(shapes: Shapes, hidden_size: int) -> dict[str, Any]:
    """Infer the arguments that depend only on the variables of the blocks."""
    attention = _QUERY.removesuffix("/query/kernel")
    _, heads, head_dim = shapes.get(_QUERY, (0, 1, hidden_size))
    projections = {f"{attention}/out/bias": "bias", f"{attention}/out/kernel": "no_bias"}
    gate = shapes.get(_GATE)
    kernel = gate or shapes.get(_DENSE)
    biases = tuple(f"{attention}/{part}/bias" in shapes for part in ("query", "key", "value"))
    return {
        "mlp": "swiglu" if gate else "mlp",
        "mlp_dim": kernel[1] if kernel else None,
        "qkv_bias": biases[0] if len(set(biases)) == 1 else biases,
        "qk_norm": f"{attention}/query_norm/scale" in shapes,
        "head_dim": head_dim if heads * head_dim != hidden_size else None,
        "output_projection": next((value for name, value in projections.items() if name in shapes), "none"),
    }


def infer_decoder(shapes: Shapes, heads: int | None, path: str) -> dict[str, Any]:
    """Infer the arguments of a `MaskedAutoencoder` from the variables of its decoder."""
    numbers = {int(match[1]) for name in shapes if (match := re.match(r"decoder_block_(\d{1,6})/", name))}
    mlp = shapes.get("decoder_block_0/MlpBlock_0/Dense_0/kernel", (0, 0))
    return {
        "decoder_hidden_size": shapes["decoder_embed/kernel"][-1],
        "decoder_num_layers": _count(numbers, 0, "decoder block", path),
        "decoder_num_heads": heads,
        "decoder_mlp_dim": mlp[-1] or None,
    }


def resnet_blocks(shapes: Shapes, path: str) -> list[int]:
    """Return the number of units in each stage of a ResNet."""
    units: dict[int, set[int]] = {}
    for name in shapes:
        if match := re.match(r"block(\d{1,6})/unit(\d{1,6})/", name):
            units.setdefault(int(match[1]), set()).add(int(match[2]))
    stages = _count(set(units), 1, "stage of the ResNet", path)
    return [_count(units[stage], 1, f"unit of block{stage}", path) for stage in range(1, stages + 1)]


def _count(numbers: set[int], first: int, what: str, path: str) -> int:
    """Count blocks, stages or units. Their numbers must be consecutive."""
    expected = range(first, first + len(numbers))
    if missing := sorted(set(expected) - numbers):
        raise CheckpointError(f"{path} is incomplete: it has {what} {max(numbers)}, but no {what} {missing[0]}.")
    if len(numbers) > MAX_BLOCKS:
        raise CheckpointError(f"{path} must have at most {MAX_BLOCKS} of each: {what}. Received: {len(numbers)}.")
    return len(numbers)


def _check_ranks(shapes: Shapes, path: str) -> None:
    for rank, names in _RANKS.items():
        for name in shapes.keys() & set(names):
            if len(shapes[name]) != rank:
                raise CheckpointError(f"{path}: {name!r} must have {rank} dimensions. Received: shape {shapes[name]}.")
    for head in ("head", "head_dist", "pre_logits"):
        kernel, bias = shapes.get(f"{head}/kernel"), shapes.get(f"{head}/bias")
        if (kernel is None) != (bias is None) or head == "head_dist" and kernel and "head/kernel" not in shapes:
            there = [name for name in shapes if name.startswith(("head/", "head_dist/", "pre_logits/"))]
            raise CheckpointError(f"{path} is incomplete: its head has only {', '.join(there)}. Fetch it again.")
        if kernel and bias and kernel[-1] != bias[0]:
            raise CheckpointError(f"{path}: {head}/kernel has {kernel[1]} classes, but {head}/bias has {bias[0]}.")


def shown(arguments: Arguments) -> dict[str, Any]:
    """Reduce each argument to the part that can be inferred from tensors."""
    return {name: PARTLY_SHOWN.get(name, lambda whole: whole)(value) for name, value in arguments.items()}


def check_type(
    source: TensorSource, found: Arguments, always: Arguments, stated: Arguments = _NONE, wanted: Arguments = _NONE
) -> None:
    """Refuse a file whose tensors disagree with its type or its `stated` arguments.

    `always` contains the arguments that all models of the type share. These arguments are not checked if the metadata
    of `save_checkpoint` lists the model's arguments. An argument is also skipped if `wanted` contains the value found
    in the tensors.
    """
    actual, expected = shown(found), shown(wanted)
    facts = {} if "arguments" in source.metadata else {**ALWAYS, **always}
    facts = {name: value for name, value in facts.items() if name not in expected or expected[name] != actual.get(name)}
    facts |= {name: value for name, value in stated.items() if value is not None}
    check_stated(facts, actual, f"{source.path}: its type or config.json")


def check_stated(stated: Arguments, found: Arguments, where: str) -> None:
    """Refuse a file whose description disagrees with its tensors. None marks an unknown argument."""
    for name, value in stated.items():
        if value is None or found.get(name) is None:
            continue
        plain, actual = _plain(value), _plain(found[name])
        if plain != actual or isinstance(plain, bool) != isinstance(actual, bool):
            raise CheckpointError(
                f"{where} has {name}={str(value)[:60]}, but the tensors have {name}={actual!r}. The file lacks tensors "
                "or belongs to another model. Fetch both again. If the model is unusual, pass the argument's value."
            )


def _plain(value: Any) -> Any:
    """Return one number for a pair of equal numbers, and any other value unchanged."""
    value = list(value) if isinstance(value, tuple) else value
    return value[0] if isinstance(value, list) and len(value) == 2 and value[0] == value[1] else value


def check_complete(shapes: Shapes, arguments: Mapping[str, Any], path: str) -> None:
    """Before the model is built, refuse a file with fewer weights than the model's blocks need."""
    wanted = weights_of_blocks(arguments)
    found = sum(math.prod(shape) for shape in shapes.values())
    if wanted > found:
        raise CheckpointError(f"{path} is incomplete: its blocks need {wanted} weights, but the file has {found}.")


def weights_of_blocks(arguments: Mapping[str, Any]) -> int:
    """Count the weights in the kernels of a model's blocks and units, except those of a user's blocks."""
    width = 64 * arguments.get("width_factor", 1)
    stages = arguments.get("resnet_blocks") or arguments.get("block_sizes") or ()
    count = sum(units * 14 * (width * 2**index) ** 2 for index, units in enumerate(stages))
    is_own = any(arguments.get(name, usual) != usual for name, usual in STANDARD.items())
    if arguments.get("num_layers") and not is_own:
        size = arguments["hidden_size"]
        heads = arguments["num_heads"] * arguments["head_dim"] if arguments.get("head_dim") else size
        projections = 3 if arguments.get("output_projection") == "none" else 4
        matrices = 3 if arguments.get("mlp") == "swiglu" else 2
        count += arguments["num_layers"] * (projections * size * heads + matrices * size * arguments["mlp_dim"])
    return count


def infer_bit(shapes: Shapes, path: str) -> dict[str, Any]:
    """Infer the constructor's arguments from the variables of a BiT ResNet."""
    _check_ranks(shapes, path)
    root, head = shapes.get("root_block/conv_root/kernel", ()), shapes.get("head/kernel")
    if len(root) != 4 or root[3] % 64:
        raise CheckpointError(f"{path}: the root must have a multiple of 64 filters. Received: shape {root}.")
    return {
        "block_sizes": resnet_blocks(shapes, path),
        "width_factor": root[3] // 64,
        "image_size": None,
        "classes": head[-1] if head else 0,
        "include_top": head is not None,
        "channels": root[2],
    }
