"""Finds out what a checkpoint file holds."""

import os
from typing import Any

from keras_vit.checkpoints import architecture, google, grid, huggingface, note, timm
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.keras_file import KerasSource
from keras_vit.checkpoints.layout import Checkpoint, Layout, variable_shapes
from keras_vit.checkpoints.opening import open_source
from keras_vit.checkpoints.rules import SAME, Binding
from keras_vit.checkpoints.source import TensorSource


def identify(path: str | os.PathLike[str], hints: grid.Hints | None = None, config: Any = None) -> Checkpoint:
    """Open a checkpoint and recognize its family, layout and architecture from the headers.

    Args:
        path: A file or directory.
        hints: What the caller knows of the file.
        config: The model's `config.json`, as a path or an object, if it is not beside the tensors.

    Returns:
        The checkpoint, whose source the caller closes.

    Raises:
        CheckpointError: If no family is recognised, or the file is damaged.
    """
    hints = hints or grid.Hints()
    source = open_source(path, config)
    try:
        note.check(source)
        checkpoint = _recognise(source, hints)
        note.apply(checkpoint)
        grid.settle(checkpoint, hints)
    except BaseException:
        source.close()
        raise
    return checkpoint


def _recognise(source: TensorSource, hints: grid.Hints) -> Checkpoint:
    if isinstance(source, KerasSource):
        return _keras(source)
    checkpoint = google.recognise(source, hints)
    if checkpoint is None and hints.prefix is not None:
        raise CheckpointError(f"{source.path} has no tree of parameters at prefix={hints.prefix!r}.")
    checkpoint = checkpoint or huggingface.recognise(source, hints) or timm.recognise(source, hints)
    if checkpoint is None:
        names = sorted(source.tensors)
        raise CheckpointError(
            f"{source.path} holds no Vision Transformer or BiT of a known family (Google, big_vision, Hugging Face, "
            f"timm, Keras). Its {len(names)} tensors: {', '.join(names[:8])[:600]}{' ...' if len(names) > 8 else ''}"
        )
    return checkpoint


def _keras(source: KerasSource) -> Checkpoint:
    bindings = [Binding((name,), (name,), SAME) for name in source.tensors]
    shapes = variable_shapes(source, bindings, 0)
    kind = "bit" if "root_block/conv_root/kernel" in shapes else "vit"
    checkpoint = Checkpoint(source, Layout("keras"), bindings, shapes, arguments={}, kind=kind)
    if source.config is not None:
        checkpoint.arguments = _stored_arguments(source, kind, shapes)
        return checkpoint
    if kind == "bit":
        checkpoint.arguments = architecture.infer_bit(shapes, source.path)
        return checkpoint
    found = architecture.infer_vit(shapes, None, source.path)
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
    if kind == "vit":
        found = architecture.infer_vit(shapes, arguments.get("num_heads"), source.path)
    else:
        found = architecture.infer_bit(shapes, source.path)
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
