"""`save_checkpoint`: writes a model in the form in which other libraries read it."""

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import keras
import ml_dtypes
import numpy as np

from keras_vit import _checks
from keras_vit.checkpoints import architecture, google, huggingface, limits, timm, torch_config
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
    format is the same, and every tensor is equal bit for bit. The file appears at once and complete, or not at all.

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
    metadata = {"version": 1, "arguments": {k: config[k] for k in architecture.STRUCTURE if k in config}}
    if config.get("image_size") is not None:
        metadata["image_size"] = config["image_size"]
    if isinstance(model, VisionTransformer):
        metadata["grid"] = list(architecture.grid_of(config))
    if format in ("google", "big_vision"):
        _replace_file(path, lambda temporary: write_npz(temporary, writer.names, writer.produce, metadata))
        return path
    names = tuple(class_names) if class_names is not None else getattr(model, "class_names", None)
    documents = torch_config.documents(format, config, layout, names, preprocessor)
    _write_torch(path, writer, metadata, documents)
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


def _replace_file(path: str, write: Callable[[str], None]) -> None:
    """Writes under a temporary name in the same directory, then renames."""
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=directory)
    os.close(handle)
    try:
        write(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_torch(path: str, writer: _Writer, metadata: dict[str, Any], documents: dict[str, dict[str, Any]]) -> None:
    def write_tensors(temporary: str) -> None:
        write_safetensors(temporary, writer.tensors, writer.produce, metadata)

    if path.endswith(".safetensors"):
        _replace_file(path, write_tensors)
        _write_json(path.removesuffix(".safetensors") + "_config.json", documents["config.json"])
        return
    if os.path.isdir(path) and os.listdir(path):
        # A directory that is in use keeps its other files: the tensors come last, so that a reader sees old or new.
        for name, content in documents.items():
            _write_json(os.path.join(path, name), content)
        _replace_file(os.path.join(path, "model.safetensors"), write_tensors)
        return
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=".writing-", dir=parent)
    try:
        for name, content in documents.items():
            _write_json(os.path.join(temporary, name), content)
        write_tensors(os.path.join(temporary, "model.safetensors"))
        os.chmod(temporary, 0o777 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_json(path: str, content: dict[str, Any]) -> None:
    def write(temporary: str) -> None:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2, ensure_ascii=False)
            file.write("\n")

    _replace_file(path, write)
