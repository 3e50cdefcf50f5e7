"""Finds out what a checkpoint file holds."""

import os
from typing import Any

from keras_vit.checkpoints import architecture, google, huggingface, timm
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.keras_file import KerasSource
from keras_vit.checkpoints.layout import Checkpoint, Layout
from keras_vit.checkpoints.opening import open_source
from keras_vit.checkpoints.rules import SAME, Binding
from keras_vit.checkpoints.source import TensorSource

# What tensors do not show, so that a note about it is worth more than a project's default.
_NOTED = (
    "pooling",
    "position_embedding",
    "activation",
    "layer_norm_epsilon",
    "norm_after_pooling",
    "resnet_numerics",
    "distillation_token",
)


def identify(
    path: str | os.PathLike[str],
    num_heads: int | None = None,
    config: Any = None,
    prefix: str | None = None,
    grid: tuple[int, int] | None = None,
    image_size: Any = None,
) -> Checkpoint:
    """Opens a checkpoint and recognises its family, layout and architecture from the headers.

    Args:
        path: A file or directory.
        num_heads: Attention heads, for files that do not show them.
        config: The model's `config.json`, as a path or an object, where it does not lie beside the tensors.
        prefix: Where a Flax file's tree of parameters begins; None for the usual places.
        grid: (height, width) of the position table, for files whose table is not square and that do not say.
        image_size: Size of the images that the model takes, in pixels, the last resort for the same.

    Returns:
        The checkpoint, whose source the caller closes.

    Raises:
        CheckpointError: If no family is recognised, or the file is damaged.
    """
    source = open_source(path, config)
    try:
        checkpoint = _recognise(source, num_heads, prefix, grid, image_size)
        _apply_metadata(checkpoint)
        _settle_grid(checkpoint, grid, image_size)
    except BaseException:
        source.close()
        raise
    return checkpoint


def _recognise(
    source: TensorSource, num_heads: int | None, prefix: str | None, grid: Any, image_size: Any
) -> Checkpoint:
    if isinstance(source, KerasSource):
        return _keras(source)
    checkpoint = google.recognise(source, num_heads, prefix)
    if checkpoint is None and prefix is not None:
        raise CheckpointError(f"{source.path} has no tree of parameters at prefix={prefix!r}.")
    checkpoint = (
        checkpoint or huggingface.recognise(source, num_heads) or timm.recognise(source, num_heads, grid, image_size)
    )
    if checkpoint is None:
        names = sorted(source.tensors)
        raise CheckpointError(
            f"{source.path} holds no Vision Transformer or BiT of a known family (Google, big_vision, Hugging Face, "
            f"timm, Keras). Its {len(names)} tensors: {', '.join(names[:8])[:600]}{' ...' if len(names) > 8 else ''}"
        )
    return checkpoint


def _keras(source: KerasSource) -> Checkpoint:
    bindings = [Binding((name,), (name,), SAME) for name in source.tensors]
    shapes = {name: tensor.shape for name, tensor in source.tensors.items()}
    kind = "bit" if "root_block/conv_root/kernel" in shapes else "vit"
    checkpoint = Checkpoint(source, Layout("keras"), bindings, shapes, arguments={}, kind=kind)
    if source.config is not None:
        checkpoint.arguments = _stored_arguments(source, kind, shapes)
        if kind == "vit":
            checkpoint.grid = architecture.grid_of(checkpoint.arguments)
        return checkpoint
    if kind == "bit":
        checkpoint.arguments = architecture.infer_bit(shapes)
        return checkpoint
    found = architecture.infer_vit(shapes, None)
    if found["position_embedding"] == "none":
        del found["position_embedding"]  # weights alone do not tell fixed, learned elsewhere and no positions apart
    checkpoint.arguments = found
    checkpoint.assumed["activation"] = "a file of weights alone does not say; the reference's is taken"
    return checkpoint


def _stored_arguments(source: KerasSource, kind: str, shapes: architecture.Shapes) -> dict[str, Any]:
    """Returns the constructor's arguments of a `.keras` file, after checking that its weights agree with them."""
    expected = {"vit": "VisionTransformer", "bit": "BiTResNet"}[kind]
    arguments = source.config.get("config")
    if source.config.get("class_name") != expected or not isinstance(arguments, dict):
        raise CheckpointError(
            f"{source.path} holds a model of class {str(source.config.get('class_name'))[:60]!r}, no keras_vit model. "
            "Open it with keras.saving.load_model."
        )
    for name, value in arguments.items():
        items = value if isinstance(value, list) else [value]
        if not all(item is None or isinstance(item, (bool, int, float, str)) for item in items):
            raise CheckpointError(
                f"{source.path}: argument `{name[:60]}` is no plain value. Open it with keras.saving.load_model."
            )
    arguments = dict(arguments)
    if kind == "vit" and arguments.get("class_token") is None:
        arguments["class_token"] = arguments.get("pooling") in ("token", None)
    found = (
        architecture.infer_vit(shapes, arguments.get("num_heads")) if kind == "vit" else architecture.infer_bit(shapes)
    )
    uncertain = ("pooling", "position_embedding", "image_size", "layer_scale", "classes", "distillation_token")
    for name in found.keys() - set(uncertain):
        theirs = arguments.get(name)
        if name in arguments and (list(theirs) if isinstance(theirs, tuple) else theirs) != found[name]:
            raise CheckpointError(
                f"{source.path}: config.json says {name}={str(theirs)[:60]}, the weights say {found[name]!r}. Damaged?"
            )
    if found["include_top"] and arguments.get("classes") != found["classes"]:
        raise CheckpointError(f"{source.path}: config.json and weights disagree about the number of classes. Damaged?")
    return arguments


def _apply_metadata(checkpoint: Checkpoint) -> None:
    """Prefers what `save_checkpoint` noted to what was inferred."""
    metadata = checkpoint.source.metadata
    noted = metadata.get("arguments")
    if isinstance(noted, dict):
        known = {name: value for name, value in noted.items() if name in _NOTED and _plain(value)}
        checkpoint.arguments.update(known)
        checkpoint.assumed = {k: v for k, v in checkpoint.assumed.items() if k not in known}
        checkpoint.alternatives = {k: v for k, v in checkpoint.alternatives.items() if k not in known}


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _settle_grid(checkpoint: Checkpoint, grid: tuple[int, int] | None, image_size: Any) -> None:
    """Finds the grid of the position table and with it the image size."""
    arguments, metadata = checkpoint.arguments, checkpoint.source.metadata
    if checkpoint.kind == "bit":
        return
    sizes = [metadata.get("image_size"), metadata.get("image"), arguments.get("image_size")]
    images = [size for size in map(architecture.pair, sizes) if size is not None]
    table = checkpoint.shapes.get(architecture.TABLE)
    if table is None or len(table) != 3:
        if "image_size" not in arguments:
            arguments["image_size"] = architecture.plain_pair(images[0]) if images else None
        if arguments["image_size"] is None and not images:
            checkpoint.assumed["image_size"] = "without a position table nothing fixes it"
        return
    count = table[1] - architecture.num_slots(arguments)
    hints = [grid, checkpoint.grid, architecture.pair(metadata.get("grid"))]
    hints += [architecture.grid_of({**arguments, "image_size": list(size)}) for size in images]
    wanted = architecture.pair(image_size)
    fallback = architecture.grid_of({**arguments, "image_size": list(wanted)}) if wanted else None
    checkpoint.grid = architecture.find_grid(count, hints, fallback, checkpoint.source.path)
    if checkpoint.layout.family == "keras" and checkpoint.source.config is not None:
        if architecture.grid_of(arguments) != checkpoint.grid:
            raise CheckpointError(f"{checkpoint.source.path}: image_size and position table disagree. Damaged?")
        return
    rows, columns = architecture.stride(arguments)
    size = (checkpoint.grid[0] * rows, checkpoint.grid[1] * columns)
    fitting = [
        image for image in images if architecture.grid_of({**arguments, "image_size": list(image)}) == checkpoint.grid
    ]
    arguments["image_size"] = architecture.plain_pair(fitting[0] if fitting else size)
