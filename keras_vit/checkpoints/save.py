"""`save_checkpoint`: writes a model in the form in which other libraries read it."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable
from typing import Any

import keras
import ml_dtypes
import numpy as np

from keras_vit import _checks
from keras_vit._io import atomic_directory, atomic_file, write_json
from keras_vit.checkpoints import google, huggingface, limits, note, timm, torch_config
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.flax_names import LEGACY_BLOCK, LINEN_BLOCK, MAP_HEAD
from keras_vit.checkpoints.layout import Layout
from keras_vit.checkpoints.npz import write_npz
from keras_vit.checkpoints.plan import weights_of
from keras_vit.checkpoints.rules import Binding, Rule, bind_variables
from keras_vit.checkpoints.safetensors_file import write_safetensors
from keras_vit.checkpoints.source import TensorInfo
from keras_vit.models import BiTResNet, VisionTransformer

FORMATS = ("google", "big_vision", "huggingface", "timm")
DTYPES = ("float32", "bfloat16", "float16")


def save_checkpoint(
    model: keras.Model,
    path: str | os.PathLike[str],
    format: str = "google",
    *,
    naming: str | None = None,
    stacked: bool | None = None,
    dtype: str = "float32",
    preprocessor: dict[str, Any] | None = None,
    class_names: Iterable[str] | None = None,
) -> str:
    """Writes a model in a format of another project.

    What was read is written as it was: names and shapes of the layout that `load_checkpoint` found are kept if the
    format is the same, and every tensor is equal bit for bit. A file or a new directory appears in one step, complete
    and on the disk. In a directory that is in use `load_checkpoint` sees old or new weights, each with their own
    configuration; for a moment, other libraries may see the new weights beside the old `config.json`.

    Args:
        model: A `VisionTransformer` or `BiTResNet`.
        path: An `.npz` file for `"google"` and `"big_vision"`, a directory for `"huggingface"` and `"timm"`, or for
            these a `.safetensors` file, whose configuration is written beside it as `NAME_config.json`.
        format: `"google"` (vision_transformer; BiT in big_transfer's names), `"big_vision"`, `"huggingface"` or
            `"timm"`.
        naming: Names of a format that has several: `"legacy"` (the published files) or `"linen"` for `"google"`,
            `"published"` or `"later"` for `"huggingface"`; None for those read, else the first.
        stacked: Whether `"big_vision"` stacks the blocks (`scan=True` there); None for as read, else not.
        dtype: `"float32"`, `"bfloat16"` or `"float16"`.
        preprocessor: What `preprocessor_config.json` says; None for images in [-1, 1] of the model's size.
        class_names: Names of the classes for the configuration; None for those that were loaded with the model.

    Returns:
        The path.

    Raises:
        CheckpointError: A `ValueError`. If the format cannot hold this model; the message says why, and which can.
    """
    _checks.choice("format", format, FORMATS)
    _checks.choice("dtype", dtype, DTYPES)
    if not isinstance(model, (VisionTransformer, BiTResNet)):
        raise ValueError(f"`model` must be a keras_vit model. Received: {type(model).__name__}.")
    path = os.fspath(path)
    config = limits.settled(model.get_config())
    limits.check(format, config, is_vit=isinstance(model, VisionTransformer))
    layout = _layout(model, format, config, naming, stacked)
    variables = weights_of(model)
    bindings, homeless = bind_variables(_rules(layout), variables, depth=config.get("num_layers", 0))
    if homeless:
        raise CheckpointError(f"The {format} format has no place for {', '.join(homeless[:20])}. Save it as .keras.")
    writer = _Writer(variables, bindings, dict(layout.renamed), dtype)
    try:
        if format in ("google", "big_vision"):
            with atomic_file(path) as temporary:
                write_npz(temporary, writer.names, writer.produce, note.of_model(config, None))
        else:
            names = tuple(class_names) if class_names is not None else getattr(model, "class_names", None)
            _write_torch(path, writer, config, torch_config.documents(format, config, layout, names, preprocessor))
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"Could not write the checkpoint ({reason}); nothing was changed", path) from error
    return path


def _rules(layout: Layout) -> list[Rule]:
    if layout.family == "huggingface":
        return huggingface.rules(layout)
    if layout.family == "timm":
        return timm.rules(layout)
    return google.rules(layout)


def _layout(
    model: keras.Model, format: str, config: dict[str, Any], naming: str | None, stacked: bool | None
) -> Layout:
    read = getattr(model, "checkpoint_layout", None)
    layout = read if read is not None and read.family == format else _default_layout(model, format, config)
    choices = {"google": ("legacy", "linen"), "huggingface": ("published", "later")}.get(format, ())
    if naming is not None:
        if naming not in choices or isinstance(model, BiTResNet):
            raise ValueError(f"`naming` for format={format!r} must be one of {choices}. Received: naming={naming!r}.")
        layout = dataclasses.replace(layout, style=naming)
        if format == "google":
            names = LEGACY_BLOCK if naming == "legacy" else LINEN_BLOCK
            layout = dataclasses.replace(layout, block_names=names, group_norm_4d=naming == "legacy")
    if stacked is not None:
        if format != "big_vision" or isinstance(model, BiTResNet):
            raise ValueError(
                f"`stacked` is for Vision Transformers in format='big_vision'. Received: format={format!r}."
            )
        layout = dataclasses.replace(layout, stacked=stacked)
    return _suited(layout, config)


def _default_layout(model: keras.Model, format: str, config: dict[str, Any]) -> Layout:
    if isinstance(model, BiTResNet):
        styles = {"google": ("big_transfer", False), "big_vision": ("bit", True)}
        style, four_dimensional = styles[format]
        return Layout(format, style=style, group_norm_4d=four_dimensional)
    if format == "google":
        position = "Transformer/posembed_input/pos_embedding"
        return Layout(format, "legacy", position, "prefix", group_norm_4d=True, block_names=LEGACY_BLOCK)
    if format == "big_vision":
        return Layout(format, "linen", "pos_embedding", "none", block_names=LINEN_BLOCK, map_names=MAP_HEAD)
    if format == "huggingface":
        body = "deit." if config["distillation_token"] else "vit."
        return Layout(format, "published", prefix=body if config["include_top"] else "")
    return Layout(format, slots="none" if config["num_registers"] else "prefix")


def _suited(layout: Layout, config: dict[str, Any]) -> Layout:
    """Returns the layout with what depends on the model alone, whatever file was read before."""
    if layout.family == "huggingface":
        teacher = config["distillation_token"] is True and config["include_top"]
        body = "deit." if config["distillation_token"] else "vit."
        prefix = body if config["include_top"] else layout.prefix  # a headless file may have it or not
        return dataclasses.replace(layout, position="teacher" if teacher else "", prefix=prefix)
    if layout.family == "timm":
        slots = "none" if config["num_registers"] and layout.slots == "prefix" else layout.slots
        return dataclasses.replace(layout, slots=slots, style="stages" if config["resnet_blocks"] else "")
    return layout


class _Writer:
    """The stored tensors of a model, made one at a time."""

    def __init__(self, variables: dict[str, Any], bindings: list[Binding], renamed: dict[str, str], dtype: str):
        self._variables = variables
        self._dtype = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
        self._origin: dict[str, tuple[Binding, int]] = {}
        self.tensors: dict[str, TensorInfo] = {}
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        for binding in bindings:
            for index, (name, shape) in enumerate(zip(binding.stored, binding.stored_shapes(shapes), strict=True)):
                name = renamed.get(name, name)
                self._origin[name] = binding, index
                self.tensors[name] = TensorInfo(shape, self._dtype)
        self.tensors = dict(sorted(self.tensors.items()))
        self.names = list(self.tensors)

    def produce(self, name: str) -> np.ndarray:
        """Returns one stored tensor."""
        binding, index = self._origin[name]
        arrays = tuple(keras.ops.convert_to_numpy(self._variables[part].value) for part in binding.variables)
        return np.asarray(binding.transform.write(arrays)[index]).astype(self._dtype, copy=False)


def _write_torch(path: str, writer: _Writer, config: dict[str, Any], documents: dict[str, dict[str, Any]]) -> None:
    """Write tensors and configuration in one step for a reader.

    A new directory appears whole. Where a directory or file is in use, the tensors carry a copy of their configuration,
    which `load_checkpoint` prefers to the file beside them.
    """
    metadata = note.of_model(config, documents["config.json"])
    if path.endswith(".safetensors"):
        names = {"config.json": path.removesuffix(".safetensors") + "_config.json"}
        documents = {names[name]: documents[name] for name in names}
        _replace_files(path, writer, metadata, documents)
        return
    with contextlib.suppress(FileExistsError):
        if not os.path.isdir(path) or not os.listdir(path):
            with atomic_directory(path) as temporary:
                for name, content in documents.items():
                    write_json(os.path.join(temporary, name), content)
                tensors = os.path.join(temporary, "model.safetensors")
                write_safetensors(tensors, writer.tensors, writer.produce, metadata)
            return
    documents = {os.path.join(path, name): content for name, content in documents.items()}
    _replace_files(os.path.join(path, "model.safetensors"), writer, metadata, documents)


def _replace_files(path: str, writer: _Writer, metadata: dict[str, Any], documents: dict[str, dict[str, Any]]) -> None:
    """Write all files under temporary names, then rename one after the other, the tensors first."""
    with contextlib.ExitStack() as stack:
        for name, content in documents.items():
            with open(stack.enter_context(atomic_file(name)), "w", encoding="utf-8") as file:
                json.dump(content, file, indent=2, ensure_ascii=False)
                file.write("\n")
        temporary = stack.enter_context(atomic_file(path))
        write_safetensors(temporary, writer.tensors, writer.produce, metadata)
