"""`load_checkpoint` and `model_from_checkpoint`."""

import math
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_vit import _checks
from keras_vit.checkpoints import architecture, resize
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.grid import Hints
from keras_vit.checkpoints.identify import identify
from keras_vit.checkpoints.layout import Checkpoint
from keras_vit.checkpoints.plan import LoadReport, Options, Plan
from keras_vit.checkpoints.rules import SAME, Binding
from keras_vit.models import BiTResNet, VisionTransformer

_MAX_TABLE = 2**28  # entries of a position table
_MAX_STATED_TABLE = 2**24  # the same, where a file alone asks for it
_LARGE = 2**22  # bytes


def load_checkpoint(
    model: keras.Model,
    path: str | os.PathLike[str],
    head: str = "auto",
    method: str | None = None,
    strict: bool = True,
    *,
    grid: Sequence[int] | None = None,
    resize_patch: bool = False,
    adapt_channels: bool = False,
    zero_edges: bool = False,
    allow_nonfinite: bool = False,
    config: str | os.PathLike[str] | dict | None = None,
    prefix: str | None = None,
) -> LoadReport:
    """Loads a checkpoint of any supported family into a model.

    The family is recognised by the file's content. Position embeddings are resized to the model's grid. Everything is
    checked before the first variable changes: a load that fails leaves the model as it was.

    Args:
        model: A `VisionTransformer` or `BiTResNet`.
        path: An `.npz` (vision_transformer, AugReg, SAM, big_vision, BiT), a `.safetensors` file or directory
            (Hugging Face, timm), or a `.keras` or `.weights.h5` file.
        head: `"keep"` the file's head, `"reset"` it to its initial values, or `"auto"`: keep it if the class counts
            agree, else reset it and say so.
        method: How position embeddings are resized: `"reference"`, `"bilinear"`, `"bicubic"` or `"antialiased"`; None
            for the way of the file's own project.
        strict: Whether file and model must match completely. If not, what fits is loaded and the report tells the rest.
        grid: (height, width) of the file's position table in patches, where it is not square and the file does not say.
        resize_patch: Whether a patch kernel of another size is resized by pseudo-inverse (FlexiViT).
        adapt_channels: Whether a kernel of 3 channels is adapted to the model's 1, or more than 3.
        zero_edges: Whether to repeat the reference's rounding error, which zeroes the last row and column of the
            position table for some pairs of sizes.
        allow_nonfinite: Whether NaN and infinity are loaded.
        config: The model's `config.json`, as a path or an object, where it does not lie beside the tensors.
        prefix: Where a Flax file's tree of parameters begins, such as `"params/ema/"`; None for the usual places.

    Returns:
        What was loaded, left out and changed.

    Raises:
        CheckpointError: A `ValueError`. If the file is damaged, or does not fit the model; the message lists the
            differences and says which argument to change.
        FileNotFoundError: If there is nothing at `path`.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), section 3.2
        - [FlexiViT](https://arxiv.org/abs/2212.08013)
    """
    _checks.choice("head", head, ("auto", "keep", "reset"))
    if method is not None:
        _checks.choice("method", method, resize.METHODS)
    if not isinstance(model, (VisionTransformer, BiTResNet)):
        raise ValueError(
            f"`model` must be a keras_vit model. Received: {type(model).__name__}. Load into the VisionTransformer or "
            "BiTResNet before building other models from it."
        )
    options = Options(head, method, resize_patch, adapt_channels, zero_edges)
    model_config = model.get_config()
    checkpoint = identify(path, _hints(model_config, grid, prefix), config)
    try:
        return _load(model, checkpoint, options, strict, allow_nonfinite)
    finally:
        checkpoint.source.close()


def model_from_checkpoint(
    path: str | os.PathLike[str],
    *,
    head: str = "auto",
    method: str | None = None,
    grid: Sequence[int] | None = None,
    zero_edges: bool = False,
    resize_patch: bool = False,
    adapt_channels: bool = False,
    allow_nonfinite: bool = False,
    config: str | os.PathLike[str] | dict | None = None,
    prefix: str | None = None,
    **overrides: Any,
) -> keras.Model:
    """Builds the model that a checkpoint belongs to, and loads it.

    What the file does not say (the heads of a timm file without `config.json`, the image size of a convolutional
    network) is taken as its project has it by default, which the log states.

    Args:
        path: See `load_checkpoint`.
        head: See `load_checkpoint`.
        method: See `load_checkpoint`.
        grid: See `load_checkpoint`.
        zero_edges: See `load_checkpoint`.
        resize_patch: See `load_checkpoint`.
        adapt_channels: See `load_checkpoint`.
        allow_nonfinite: See `load_checkpoint`.
        config: See `load_checkpoint`.
        prefix: See `load_checkpoint`.
        **overrides: Arguments of `VisionTransformer` or `BiTResNet` to use instead of the file's, such as `image_size`,
            `classes`, `num_heads` or `dropout_rate`.

    Returns:
        A `VisionTransformer` or `BiTResNet`.

    Raises:
        CheckpointError: If the file is damaged, of no known family, or does not suit the overrides.
        FileNotFoundError: If there is nothing at `path`.
    """
    _checks.choice("head", head, ("auto", "keep", "reset"))
    checkpoint = identify(path, _hints(overrides, grid, prefix), config)
    try:
        model = _build(checkpoint, overrides)
        options = Options(head, method, resize_patch, adapt_channels, zero_edges)
        _load(model, checkpoint, options, strict=True, allow_nonfinite=allow_nonfinite)
    finally:
        checkpoint.source.close()
    return model


def architecture_of(
    path: str | os.PathLike[str],
    *,
    grid: Sequence[int] | None = None,
    config: str | os.PathLike[str] | dict | None = None,
    prefix: str | None = None,
    **overrides: Any,
) -> tuple[str, dict[str, Any]]:
    """Return the model that a checkpoint belongs to, without building it.

    Only headers are read.

    Args:
        path: See `load_checkpoint`.
        grid: See `load_checkpoint`.
        config: See `load_checkpoint`.
        prefix: See `load_checkpoint`.
        **overrides: Arguments to use instead of the file's.

    Returns:
        `"vit"` or `"bit"`, and the arguments of `VisionTransformer` or `BiTResNet`.

    Raises:
        CheckpointError: If the file is damaged or of no known family.
        FileNotFoundError: If there is nothing at `path`.

    Example:
        >>> kind, arguments = architecture_of("vit-base-patch16-224/")
        >>> model = keras_vit.VisionTransformer(**{**arguments, "classes": 10})
    """
    checkpoint = identify(path, _hints(overrides, grid, prefix), config)
    try:
        return checkpoint.kind, _arguments(checkpoint, overrides)
    finally:
        checkpoint.source.close()


def _hints(wanted: dict[str, Any], grid: Sequence[int] | None, prefix: str | None) -> Hints:
    return Hints(wanted, None if grid is None else _checks.size_pair("grid", grid), prefix)


def _build(checkpoint: Checkpoint, overrides: dict[str, Any]) -> keras.Model:
    arguments = _arguments(checkpoint, overrides)
    model_class = VisionTransformer if checkpoint.kind == "vit" else BiTResNet
    try:
        return model_class.from_config(arguments)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{model_class.__name__} cannot be built from {checkpoint.source.path}: {error}"
        ) from error


def _arguments(checkpoint: Checkpoint, overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the constructor's arguments, after checking that the file holds the weights of such a model."""
    architecture.check_complete(checkpoint.shapes, checkpoint.arguments, checkpoint.source.path)
    arguments = {**checkpoint.arguments, **overrides}
    if checkpoint.kind == "vit":
        missing = [name for name in ("num_heads", "mlp_dim") if arguments.get(name) is None]
        if missing:
            raise CheckpointError(f"{checkpoint.source.path} has no encoder blocks to show {', '.join(missing)}.")
    if not checkpoint.arguments.get("include_top", True) and "classes" in overrides and "include_top" not in overrides:
        arguments["include_top"] = True
    if not arguments.get("include_top", True):
        arguments.pop("classes", None)
    for name, reason in checkpoint.assumed.items():
        if name not in overrides:
            logging.info("%s: %s=%r is assumed: %s.", checkpoint.source.path, name, arguments.get(name), reason)
    _check_size(arguments, checkpoint, _MAX_TABLE if "image_size" in overrides else _MAX_STATED_TABLE)
    return arguments


def _check_size(arguments: dict[str, Any], checkpoint: Checkpoint, limit: int) -> None:
    """Refuses an image size that no file of weights has, before tables of that size are made."""
    size = architecture.pair(arguments.get("image_size"))
    if arguments.get("image_size") is not None and size is None:
        raise CheckpointError(
            f"{checkpoint.source.path}: image_size must be an integer or (height, width). "
            f"Received: {str(arguments['image_size'])[:60]}."
        )
    if checkpoint.kind == "vit":
        height, width = architecture.grid_of(arguments)
        if height * width * arguments["hidden_size"] > limit:
            raise CheckpointError(
                f"{checkpoint.source.path}: images of {arguments['image_size']} would have {height} x {width} patches. "
                "Pass another image_size."
            )


def _load(model, checkpoint: Checkpoint, options: Options, strict: bool, allow_nonfinite: bool) -> LoadReport:
    is_vit = isinstance(model, VisionTransformer)
    if is_vit != (checkpoint.kind == "vit"):
        raise CheckpointError(
            f"{checkpoint.source.path} holds a {'Vision Transformer' if checkpoint.kind == 'vit' else 'BiT ResNet'}. "
            f"Received: a {type(model).__name__}. Use keras_vit.model_from_checkpoint to build the model it belongs to."
        )
    plan = Plan(model, checkpoint, options)
    if strict and plan.report.problems():
        raise CheckpointError(plan.explain())
    bindings = [b for b in checkpoint.bindings if plan.wanted & set(b.variables)]
    _verify(checkpoint, bindings, allow_nonfinite)
    heads = model.get_config().get("num_heads", 1)
    for binding in bindings:
        _assign(checkpoint, binding, plan, heads)
    _reset(model, plan)
    for note in plan.report.notes:
        logging.info("%s: %s.", checkpoint.source.path, note)
    if not plan.report.problems():
        model.checkpoint_layout = checkpoint.layout  # `save_checkpoint` writes as was read
    if checkpoint.class_names and not plan.report.reset and model.get_config().get("include_top"):
        model.class_names = checkpoint.class_names
    return plan.report


def _verify(checkpoint: Checkpoint, bindings, allow_nonfinite: bool) -> None:
    """Reads every tensor once, so that a damaged file is found before anything changes."""
    source = checkpoint.source
    for name in dict.fromkeys(stored for binding in bindings for stored in binding.stored):
        dtype = source.tensors[name].dtype
        if not np.issubdtype(dtype, np.floating) and dtype.name != "bfloat16":
            raise CheckpointError(f"{source.path}: tensor {name!r} has dtype {dtype}; weights are real numbers.")
        for block in source.blocks(name):
            if not allow_nonfinite and not is_finite(block):
                raise CheckpointError(
                    f"{source.path}: tensor {name!r} holds NaN or infinity. Pass allow_nonfinite=True to load it."
                )


def is_finite(array: np.ndarray) -> bool:
    """Whether all entries are finite; one pass without a temporary array in the usual case."""
    with np.errstate(all="ignore"):
        if array.dtype.itemsize != 4:
            array = array.astype(np.float32)  # what it becomes: double precision may overflow
        return bool(np.isfinite(array.sum())) or bool(np.isfinite(array).all())


def _assign(checkpoint: Checkpoint, binding: Binding, plan: Plan, heads: int) -> None:
    if _assign_by_rows(checkpoint, binding, plan):
        return
    stored = tuple(checkpoint.source.read(name) for name in binding.stored)
    stored = tuple(a.astype(np.float32) if a.dtype.itemsize < 4 else a for a in stored)
    for name, array in zip(binding.variables, binding.transform.read(stored, heads), strict=True):
        if name in plan.wanted:
            for change in plan.changes.get(name, ()):
                array = change(array)
            plan.variables[name].assign(array)
            plan.report.loaded.append(name)


def _assign_by_rows(checkpoint: Checkpoint, binding: Binding, plan: Plan) -> bool:
    """Fills a large variable some rows at a time, where the backend can change it in place.

    A head for 21,843 classes would otherwise lie in memory three times while it is assigned.
    """
    name, source = binding.variables[0], checkpoint.source
    tensor = source.tensors[binding.stored[0]]
    variable = plan.variables[name]
    as_it_is = binding.transform is SAME and name not in plan.changes and source.is_row_major(binding.stored[0])
    # TensorFlow's plain variables take slices; those of a distribution strategy have `values`.
    in_place = hasattr(variable.value, "scatter_nd_update") and not hasattr(variable.value, "values")
    if not (as_it_is and in_place and tensor.nbytes >= _LARGE and tensor.dtype == variable.dtype):
        return False
    row_shape = tensor.shape[1:]
    row, target = 0, variable.value
    for block in source.blocks(binding.stored[0], math.prod(row_shape), verify=False):
        rows = block.reshape(-1, *row_shape)
        target[row : row + len(rows)].assign(rows)
        row += len(rows)
    plan.report.loaded.append(name)
    return True


def _reset(model, plan: Plan) -> None:
    for name in plan.report.reset:
        layer_name, leaf = name.split("/")
        layer = model.get_layer(layer_name)
        initializer = layer.kernel_initializer if leaf == "kernel" else layer.bias_initializer
        variable = plan.variables[name]
        variable.assign(initializer(tuple(variable.shape), dtype=variable.dtype))
