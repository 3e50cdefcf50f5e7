"""Architecture that the shapes of variables show, and its differences from a model's."""

import math
import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.models import ViTConfig

Shapes = Mapping[str, tuple[int, ...]]
TABLE = "posembed_input/pos_embedding"
DECODER_TABLE = "decoder_posembed/pos_embedding"

# Arguments that change the weights, or their effect. Dropout and the like may differ between file and model.
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
    "patch_norm",
    "head_dim",
    "output_projection",
    "pool_prefix_tokens",
    "resnet_numerics",
    "block_sizes",
    "width_factor",
    "pool_padding",
    "decoder_hidden_size",
    "decoder_num_layers",
    "decoder_num_heads",
    "decoder_mlp_dim",
)
# Arguments that a model without blocks does not show.
OF_BLOCKS = {"num_heads", "mlp_dim", "qkv_bias", "head_dim", "output_projection"}
# Number of dimensions of the variables that the arguments are read from.
_RANKS = {
    "embedding/kernel": 4,
    "conv_root/kernel": 4,
    "root_block/conv_root/kernel": 4,
    "head/kernel": 2,
    "head/bias": 1,
    "head_dist/kernel": 2,
    "head_dist/bias": 1,
    "pre_logits/kernel": 2,
    "cls/cls": 3,
    "dist/dist": 3,
    "registers/registers": 3,
    "encoderblock_0/MultiHeadDotProductAttention_0/query/kernel": 3,
    "encoderblock_0/MlpBlock_0/Dense_0/kernel": 2,
    TABLE: 3,
}
_BLOCK_KERNELS = (
    "LayerNorm_0/scale",
    "LayerNorm_1/scale",
    *(f"MultiHeadDotProductAttention_0/{part}/kernel" for part in ("query", "key", "value")),
    *(f"MlpBlock_0/Dense_{index}/kernel" for index in (0, 1)),
)
_UNIT_KERNELS = ("conv1/kernel", "conv2/kernel", "conv3/kernel")
MAX_BLOCKS = 1024
NONE = "None"  # stands for a None that is stated
MAX_SIZE = 2**31  # of an image edge in pixels


def infer_vit(shapes: Shapes, heads: int | None, path: str) -> dict[str, Any]:
    """Return the constructor's arguments that the variables of a Vision Transformer show.

    Args:
        shapes: Shapes by variable name.
        heads: Number of attention heads if no block shows it.
        path: Name of the file, for messages.

    Raises:
        CheckpointError: If there is no patch embedding, a block is missing, or a variable has the wrong rank.
    """
    _check_ranks(shapes, path)
    kernel = shapes.get("embedding/kernel")
    if kernel is None:
        raise CheckpointError(f"{path} has no patch embedding of shape (height, width, channels, hidden_size).")
    blocks = resnet_blocks(shapes, path) if "conv_root/kernel" in shapes else None
    depth = _count(
        {int(m[1]) for name in shapes if (m := re.match(r"encoderblock_(\d{1,6})/", name))}, 0, "block", path
    )
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
        "pool_prefix_tokens": False,
        "head_norm": "head_norm/moving_mean" in shapes,
        "patch_norm": "embedding/LayerNorm_0/scale" in shapes,
        "head_dim": query[2] if len(query) == 3 and query[1] * query[2] != kernel[3] else None,
        "output_projection": _output_projection(shapes, attention, depth),
    }


def _output_projection(shapes: Shapes, attention: str, depth: int) -> str:
    if f"{attention}/out/bias" in shapes or depth == 0:
        return "bias"
    return "no_bias" if f"{attention}/out/kernel" in shapes else "none"


def resnet_blocks(shapes: Shapes, path: str) -> list[int]:
    """Return the number of units in each stage of a ResNet.

    Raises:
        CheckpointError: If a stage or a unit is missing.
    """
    units: dict[int, set[int]] = {}
    for name in shapes:
        if match := re.match(r"block(\d{1,6})/unit(\d{1,6})/", name):
            units.setdefault(int(match[1]), set()).add(int(match[2]))
    stages = _count(set(units), 1, "stage of the ResNet", path)
    return [_count(units[stage], 1, f"unit of block{stage}", path) for stage in range(1, stages + 1)]


def _count(numbers: set[int], first: int, what: str, path: str) -> int:
    """Return the number of blocks, stages or units, which must be numbered without gaps."""
    expected = range(first, first + len(numbers))
    if missing := sorted(set(expected) - numbers):
        raise CheckpointError(f"{path} is incomplete: it has {what} {max(numbers)}, but no {what} {missing[0]}.")
    if len(numbers) > MAX_BLOCKS:
        raise CheckpointError(f"{path} must have at most {MAX_BLOCKS} of each: {what}. Received: {len(numbers)}.")
    return len(numbers)


def _check_ranks(shapes: Shapes, path: str) -> None:
    for name, rank in _RANKS.items():
        if name in shapes and len(shapes[name]) != rank:
            raise CheckpointError(f"{path}: {name!r} must have {rank} dimensions. Received: shape {shapes[name]}.")
    for head in ("head", "head_dist"):
        kernel, bias = shapes.get(f"{head}/kernel"), shapes.get(f"{head}/bias")
        if kernel and bias and kernel[1] != bias[0]:
            raise CheckpointError(f"{path}: {head}/kernel has {kernel[1]} classes, {head}/bias has {bias[0]}.")


def check_complete(shapes: Shapes, arguments: Mapping[str, Any], path: str) -> None:
    """Refuse a file that holds less than the model that its names describe, before the model is built.

    Args:
        shapes: Shapes by variable name.
        arguments: Arguments inferred from the file.
        path: Name of the file, for messages.

    Raises:
        CheckpointError: If a block lacks its kernels, or the model would have more weights than the file.
    """
    leaves = list(_BLOCK_KERNELS)
    if arguments.get("output_projection") != "none":
        leaves.append("MultiHeadDotProductAttention_0/out/kernel")
    required = [f"encoderblock_{i}/{leaf}" for i in range(arguments.get("num_layers", 0)) for leaf in leaves]
    stages = arguments.get("resnet_blocks") or arguments.get("block_sizes") or ()
    digits = 2 if "block_sizes" in arguments else 0
    for stage, units in enumerate(stages, start=1):
        names = [f"block{stage}/unit{str(unit).zfill(digits)}" for unit in range(1, units + 1)]
        required += [f"{name}/{leaf}" for name in names for leaf in _UNIT_KERNELS]
    missing = [name for name in required if name not in shapes]
    if missing:
        raise CheckpointError(
            f"{path} is incomplete: {len(missing)} weights of its blocks are missing, such as {missing[0]}."
        )
    width = 64 * arguments.get("width_factor", 1)
    wanted = sum(units * 14 * (width * 2**index) ** 2 for index, units in enumerate(stages))
    if arguments.get("num_layers"):
        size = arguments["hidden_size"]
        heads = arguments["num_heads"] * arguments["head_dim"] if arguments.get("head_dim") else size
        projections = 3 if arguments.get("output_projection") == "none" else 4
        wanted += arguments["num_layers"] * (projections * size * heads + 2 * size * arguments["mlp_dim"])
    found = sum(math.prod(shape) for shape in shapes.values())
    if wanted > found:
        raise CheckpointError(
            f"{path} is incomplete or damaged: its blocks would have {wanted} weights, the whole file has {found}."
        )


def infer_bit(shapes: Shapes, path: str) -> dict[str, Any]:
    """Return the constructor's arguments that the variables of a BiT ResNet show.

    Raises:
        CheckpointError: If the root convolution is missing, or a unit is.
    """
    _check_ranks(shapes, path)
    root, head = shapes.get("root_block/conv_root/kernel", ()), shapes.get("head/kernel")
    if len(root) != 4 or root[3] % 64:
        raise CheckpointError(
            f"{path}: the root convolution must have a multiple of 64 filters. Received: shape {root}."
        )
    return {
        "block_sizes": resnet_blocks(shapes, path),
        "width_factor": root[3] // 64,
        "image_size": None,
        "classes": head[-1] if head else 0,
        "include_top": head is not None,
        "channels": root[2],
    }


def plain_pair(pair: tuple[int, ...]) -> int | list[int]:
    """Return one number for two equal ones."""
    return pair[0] if len(set(pair)) == 1 else list(pair)


def pair(value: Any) -> tuple[int, int] | None:
    """Return (height, width) of an integer or a pair, None for anything else."""
    sizes = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    good = len(sizes) == 2 and all(type(size) is int and 0 < size <= MAX_SIZE for size in sizes)
    return sizes if good else None


def geometry(arguments: Mapping[str, Any]) -> ViTConfig:
    """Return a configuration with the arguments that patches depend on, and the defaults of all others."""
    names = ("patch_size", "resnet_blocks", "image_size")
    return ViTConfig(**{"image_size": None, **{name: arguments[name] for name in names if name in arguments}})


def grid_of(arguments: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the grid of a model's position table, None if its images are not a whole number of patches."""
    try:
        return geometry(arguments).grid
    except ValueError:
        return None


def num_slots(arguments: Mapping[str, Any]) -> int:
    """Return the number of prefix tokens with entries in the position table."""
    return int(bool(arguments.get("class_token"))) + int(bool(arguments.get("distillation_token")))


def check_stated(stated: Mapping[str, Any], found: Mapping[str, Any], where: str) -> None:
    """Refuse a file whose description disagrees with its tensors.

    Args:
        stated: Arguments as a configuration or note states them; None where it does not.
        found: Arguments that the tensors show; None where they do not.
        where: Name of the description, for the message.

    Raises:
        CheckpointError: Naming the first argument that differs, and both values.
    """
    for name, value in stated.items():
        if value is None or found.get(name) is None:
            continue
        mine, theirs = (list(v) if isinstance(v, tuple) else v for v in (value, found[name]))
        if mine != theirs or isinstance(mine, bool) != isinstance(theirs, bool):
            raise CheckpointError(
                f"{where} says {name}={str(value)[:60]}, the tensors say {name}={theirs!r}. The file lacks tensors, or "
                "belongs to another model. Fetch both again."
            )


def differences(
    found: Mapping[str, Any], model: Mapping[str, Any], alternatives: Mapping[str, tuple[Any, ...]]
) -> dict[str, tuple[Any, Any]]:
    """Return the arguments that change the outputs and have another value in the model.

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
    if name == "layer_scale":
        return value is not None
    if name in ("resnet_blocks", "block_sizes"):
        return None if value is None else tuple(value)
    if name == "resnet_numerics" and arguments.get("resnet_blocks") is None:
        return None
    if name == "activation":
        return {"gelu_approximate": "gelu_tanh", "gelu_new": "gelu_tanh"}.get(value, value)
    if name == "pool_padding" and value == "edge":
        return "infinity"  # the edge is in every window that its copy is in
    return value
