"""The architecture that a set of variables belongs to, and how it differs from a model's."""

import math
import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.flax_names import is_square

Shapes = Mapping[str, tuple[int, ...]]
TABLE = "posembed_input/pos_embedding"

# What the weights depend on. Dropout, names and the like may differ between a file and the model it is loaded into.
STRUCTURE = (
    "hidden_size",
    "num_layers",
    "num_heads",
    "mlp_dim",
    "resnet_blocks",
    "pooling",
    "class_token",
    "distillation_token",
    "num_registers",
    "position_embedding",
    "position_embedding_at",
    "activation",
    "layer_norm_epsilon",
    "qkv_bias",
    "layer_scale",
    "norm_after_pooling",
    "resnet_numerics",
    "block_sizes",
    "width_factor",
)


def infer_vit(shapes: Shapes, heads: int | None) -> dict[str, Any]:
    """Returns the constructor's arguments that the variables of a Vision Transformer show.

    Args:
        shapes: Shapes by variable name.
        heads: Number of attention heads where there is no block to show it.

    Raises:
        CheckpointError: If there is no patch embedding.
    """
    kernel = shapes.get("embedding/kernel", ())
    if len(kernel) != 4:
        raise CheckpointError("no patch embedding of shape (height, width, channels, hidden_size) was found.")
    blocks = resnet_blocks(shapes) if "conv_root/kernel" in shapes else None
    depth = 1 + max((int(m[1]) for name in shapes if (m := re.match(r"encoderblock_(\d+)/", name))), default=-1)
    attention = "encoderblock_0/MultiHeadDotProductAttention_0"
    query = shapes.get(f"{attention}/query/kernel", ())
    mlp = shapes.get("encoderblock_0/MlpBlock_0/Dense_0/kernel", ())
    head = shapes.get("head/kernel")
    pre_logits = shapes.get("pre_logits/kernel")
    channels = shapes["conv_root/kernel"][2:3] if blocks is not None else kernel[2:3]
    return {
        "patch_size": plain_pair(kernel[:2]),
        "hidden_size": kernel[3],
        "num_layers": depth,
        "num_heads": query[1] if len(query) == 3 else heads,
        "mlp_dim": mlp[1] if len(mlp) == 2 else None,
        "resnet_blocks": blocks,
        "classes": head[-1] if head else 0,
        "include_top": head is not None,
        "pooling": "map" if "MAPHead_0/probe" in shapes else "token" if "cls/cls" in shapes else "gap",
        "class_token": "cls/cls" in shapes,
        "distillation_token": "dist/dist" in shapes,
        "representation_size": pre_logits[-1] if pre_logits else None,
        "position_embedding": "learned" if TABLE in shapes else "none",
        "num_registers": shapes["registers/registers"][1] if len(shapes.get("registers/registers", ())) == 3 else 0,
        "channels": channels[0] if channels else 3,
        "qkv_bias": f"{attention}/query/bias" in shapes or depth == 0,
        "layer_scale": 1.0 if "encoderblock_0/LayerScale_0/gamma" in shapes else None,
        "norm_after_pooling": "fc_norm/scale" in shapes,
    }


def resnet_blocks(shapes: Shapes) -> list[int]:
    """Returns how many units each stage of a ResNet has."""
    units: dict[int, int] = {}
    for name in shapes:
        if match := re.match(r"block(\d+)/unit(\d+)/", name):
            stage, unit = int(match[1]), int(match[2])
            units[stage] = max(units.get(stage, 0), unit)
    return [units.get(stage, 0) for stage in range(1, max(units, default=0) + 1)]


def infer_bit(shapes: Shapes) -> dict[str, Any]:
    """Returns the constructor's arguments that the variables of a BiT ResNet show."""
    root, head = shapes.get("root_block/conv_root/kernel", ()), shapes.get("head/kernel")
    if len(root) != 4 or root[3] == 0 or root[3] % 64:
        raise CheckpointError(f"the root convolution must have a multiple of 64 filters. Received: shape {root}.")
    return {
        "block_sizes": resnet_blocks(shapes),
        "width_factor": root[3] // 64,
        "image_size": None,
        "classes": head[-1] if head else 0,
        "include_top": head is not None,
        "channels": root[2],
    }


def plain_pair(pair: tuple[int, ...]) -> int | list[int]:
    """Returns one number for two equal ones."""
    return pair[0] if len(set(pair)) == 1 else list(pair)


def pair(value: Any) -> tuple[int, int] | None:
    """Returns (height, width) of an integer or a pair, None for anything else."""
    if isinstance(value, (list, tuple)):
        good = len(value) == 2 and all(type(size) is int and size > 0 for size in value)
        return (value[0], value[1]) if good else None
    return (value, value) if type(value) is int and value > 0 else None


def stride(arguments: Mapping[str, Any]) -> tuple[int, int]:
    """Returns how many pixels one patch covers."""
    blocks = arguments.get("resnet_blocks")
    reduction = 1 if blocks is None else 4 * 2 ** max(len(blocks) - 1, 0)
    height, width = pair(arguments["patch_size"]) or (1, 1)
    return reduction * height, reduction * width


def grid_of(arguments: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the grid of the position table of a model built with these arguments."""
    height, width = pair(arguments.get("image_size")) or (224, 224)
    rows, columns = stride(arguments)
    if arguments.get("image_size") is None:
        return max(height // rows, 1), max(width // columns, 1)
    return math.ceil(height / rows), math.ceil(width / columns)


def num_slots(arguments: Mapping[str, Any]) -> int:
    """Returns how many prefix tokens the position table has entries for."""
    return int(bool(arguments.get("class_token"))) + int(bool(arguments.get("distillation_token")))


def find_grid(
    count: int,
    hints: list[tuple[int, int] | None],
    fallback: tuple[int, int] | None,
    path: str,
) -> tuple[int, int]:
    """Returns the grid of a table of `count` patches.

    Args:
        count: Entries of the table without prefix tokens.
        hints: Grids that the file or the caller names, the most reliable first; one that does not fit is passed over.
        fallback: The model's grid, taken if the count is no square.
        path: The file, for the message.

    Raises:
        CheckpointError: If the count fits no square and no hint.
    """
    for hint in hints:
        if hint is not None and hint[0] * hint[1] == count:
            return hint
    if is_square(count):
        return (round(count**0.5),) * 2
    if fallback is not None and fallback[0] * fallback[1] == count:
        return fallback
    raise CheckpointError(
        f"{path}: its {count} position embeddings form no square grid, and the file does not say which one they form. "
        "Pass grid=(height, width), in patches."
    )


def differences(
    found: Mapping[str, Any], model: Mapping[str, Any], alternatives: Mapping[str, tuple[Any, ...]]
) -> dict[str, tuple[Any, Any]]:
    """Returns the arguments on which the outputs depend and in which file and model differ.

    Args:
        found: Arguments inferred from the file.
        model: Arguments of the model.
        alternatives: Values of an argument that the file suits as well.

    Returns:
        Argument to (file's value, model's value).
    """
    result = {}
    for name in STRUCTURE:
        if name not in found or name not in model:
            continue
        if name == "pooling" and model[name] is None and found[name] != "map":
            continue  # all tokens, unpooled: the same weights
        ours, theirs = _comparable(name, found[name], found), _comparable(name, model[name], model)
        if ours != theirs and model[name] not in alternatives.get(name, ()):
            result[name] = (found[name], model[name])
    return result


def _comparable(name: str, value: Any, arguments: Mapping[str, Any]) -> Any:
    if name == "class_token" and value is None:
        return arguments.get("pooling") in ("token", None)
    if name == "layer_scale":
        return value is not None
    if name == "layer_norm_epsilon":
        return float(value)
    if name in ("resnet_blocks", "block_sizes"):
        return None if value is None else tuple(value)
    if name == "resnet_numerics":
        return value if arguments.get("resnet_blocks") is not None else None
    if name == "activation":
        return {"gelu_approximate": "gelu_tanh", "gelu_new": "gelu_tanh"}.get(value, value)
    return value
