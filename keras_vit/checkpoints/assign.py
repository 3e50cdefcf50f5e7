"""The last step of a load: read every tensor, and only then change the model's variables."""

import math

import keras
import numpy as np

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.match import NORMS, Match
from keras_vit.checkpoints.rules import SAME, Binding

_LARGE = 2**22  # bytes


def assign(model: keras.Model, match: Match, allow_nonfinite: bool) -> None:
    """Fill the variables of a model as a match says, and set those of a head without values to their initial ones.

    Args:
        model: The model.
        match: Its match with a checkpoint, whose report gets the variables that were filled.
        allow_nonfinite: Whether to accept NaN and infinity.

    Raises:
        CheckpointError: If a tensor is damaged. Nothing was changed then.
    """
    bindings = [binding for binding in match.checkpoint.bindings if match.wanted & set(binding.variables)]
    _verify(match.checkpoint.source, bindings, allow_nonfinite)
    for binding in bindings:
        _assign(binding, match)
    _reset(model, match)


def _verify(source: TensorSource, bindings: list[Binding], allow_nonfinite: bool) -> None:
    """Read every tensor once, so that a damaged file is found before anything changes."""
    for name in dict.fromkeys(stored for binding in bindings for stored in binding.stored):
        dtype = source.tensors[name].dtype
        if not np.issubdtype(dtype, np.floating) and dtype.name != "bfloat16":
            raise CheckpointError(f"{source.path}: tensor {name!r} has dtype {dtype}; weights are real numbers.")
        for block in source.blocks(name):
            if not allow_nonfinite and not _is_finite(block):
                raise CheckpointError(
                    f"{source.path}: tensor {name!r} holds NaN or infinity. Pass allow_nonfinite=True to load it."
                )


def _is_finite(array: np.ndarray) -> bool:
    """Return whether all entries are finite: one pass without a temporary array in the usual case."""
    with np.errstate(all="ignore"):
        if array.dtype.itemsize != 4:
            array = array.astype(np.float32)  # the model's dtype: double precision may overflow
        return bool(np.isfinite(array.sum())) or bool(np.isfinite(array).all())


def _assign(binding: Binding, match: Match) -> None:
    if _assign_by_rows(binding, match):
        return
    stored = tuple(match.checkpoint.source.read(name) for name in binding.stored)
    stored = tuple(a.astype(np.float32) if a.dtype.itemsize < 4 else a for a in stored)
    for name, array in zip(
        binding.variables, binding.transform.read(stored, match.config.get("num_heads", 1)), strict=True
    ):
        if name in match.wanted:
            for change in match.changes.get(name, ()):
                array = change(array)
            match.variables[name].assign(array)
            match.report.loaded.append(name)


def _assign_by_rows(binding: Binding, match: Match) -> bool:
    """Fill a large variable some rows at a time, where the backend can change it in place.

    Otherwise, a head for 21,843 classes would be in memory three times while it is assigned.
    """
    name, source = binding.variables[0], match.checkpoint.source
    tensor = source.tensors[binding.stored[0]]
    as_it_is = binding.transform is SAME and name not in match.changes and source.is_row_major(binding.stored[0])
    if not as_it_is or tensor.nbytes < _LARGE:
        return False
    variable = match.variables[name]
    # TensorFlow's plain variables take slices; those of a distribution strategy have `values`.
    in_place = hasattr(variable.value, "scatter_nd_update") and not hasattr(variable.value, "values")
    if not in_place or tensor.dtype != variable.dtype:
        return False
    row_shape = tensor.shape[1:]
    row, target = 0, variable.value
    for block in source.blocks(binding.stored[0], math.prod(row_shape), verify=False):
        rows = block.reshape(-1, *row_shape)
        target[row : row + len(rows)].assign(rows)
        row += len(rows)
    match.report.loaded.append(name)
    return True


def _reset(model: keras.Model, match: Match) -> None:
    for name in match.report.reset:
        layer_name, leaf = name.split("/")
        layer = model.get_layer(layer_name)
        variable = match.variables[name]
        if layer_name in NORMS:
            variable.assign(keras.ops.full(variable.shape, float(leaf == "scale"), dtype=variable.dtype))
            continue
        initializer = getattr(layer, f"{leaf}_initializer")
        variable.assign(initializer(tuple(variable.shape), dtype=variable.dtype))
