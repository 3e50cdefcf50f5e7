"""Adapters of peft: a folder with the factors of LoRA and the head."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.adaptation import adapter_config
from keras_vit.adaptation.adapt import DenseLayer, adapt, lora_layers
from keras_vit.adaptation.adapter_config import AdapterConfig
from keras_vit.adaptation.adapter_names import Modules, bare, modules_of, recognize, written_rules
from keras_vit.checkpoints import CheckpointError
from keras_vit.checkpoints.formats.safetensors import SafetensorsSource, write_safetensors
from keras_vit.checkpoints.formats.tensors import PICKLE, TensorInfo, TensorSource
from keras_vit.checkpoints.match import weights_of
from keras_vit.checkpoints.rules import Binding, bind_variables
from keras_vit.models import VisionTransformer
from keras_vit.models.base import check_own
from keras_vit.util import checks
from keras_vit.util.file_io import atomic_file, check_writable, write_json

WEIGHTS = "adapter_model.safetensors"
_HEAD = ("head/", "head_dist/")


def load_adapter(model: keras.Model, folder: str | os.PathLike[str]) -> None:
    """Load an adapter of peft into a model: the factors of LoRA, and the head.

    Supports adapters of timm's models and of transformers' ViT, DeiT, DINOv2, DINOv3 and SigLIP, with the names of all
    versions of transformers. If the base model stores query, key and value as a single matrix, the three projections
    share the first factor, and the second factor is split. After loading, only the factors and, if the adapter contains
    a head, the head are trained. The entire adapter is checked before the model changes.

    Args:
        model: A `VisionTransformer` with the weights of the adapter's base model.
        folder: Directory with `adapter_config.json` and `adapter_model.safetensors`.

    Raises:
        CheckpointError: A `ValueError`. If the adapter does not match the model or is not supported. DoRA, methods
            other than LoRA, trained biases, and weights of modules other than the head are not supported. The message
            names the unsupported part.
        FileNotFoundError: If one of the two files is missing.

    References:
        - [LoRA](https://arxiv.org/abs/2106.09685)
        - [peft](https://github.com/huggingface/peft)

    Example:
    >>> model = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=2)
    >>> keras_vit.adapt(model, "lora(rank=2)")
    >>> folder = keras_vit.save_adapter(model, "example/adapter")
    >>> base = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=2)
    >>> keras_vit.load_adapter(base, folder)
    >>> base.get_layer("encoderblock_0").attention.query.lora_rank
    2
    """
    check_own(model, VisionTransformer)
    folder = checks.path("folder", folder)
    config = AdapterConfig(folder)
    with contextlib.closing(_open(folder)) as source:
        modules, factors, whole = recognize(model, source)
        _check_modules(config, modules, factors, whole, source.path)
        found = [part for name in factors for part in _read_factors(source, name, modules[name], config)]
        _check_ranks(model, {layer.path: a.shape[1] for layer, a, _, _ in found}, folder)
        head = _read_head(model, source, whole)
    for variable, value in head:
        variable.assign(value)
    for layer, a, b, alpha in found:
        if not layer.lora_enabled:
            layer.enable_lora(a.shape[1])
        layer.lora_alpha = alpha
        layer.lora_kernel_a.assign(a)
        layer.lora_kernel_b.assign(b)
    adapt(model, "weights('lora_kernel|^head(_dist)?/')" if head else "weights('lora_kernel')")


def save_adapter(
    model: keras.Model,
    folder: str | os.PathLike[str],
    format: str | None = None,  # noqa: A002
    *,
    naming: str | None = None,
    base: str | None = None,
) -> str:
    """Save the factors of LoRA and the head of a model as an adapter of peft, and return the path.

    `PeftModel.from_pretrained(base, folder)` opens the adapter, given the base model. If the base model stores query,
    key and value as a single matrix, the factors of the three projections are combined. Equal first factors are stored
    only once.

    Args:
        model: A `VisionTransformer` with LoRA.
        folder: Directory in which to write `adapter_config.json` and `adapter_model.safetensors`.
        format: `"huggingface"` or `"timm"`. None for the format of the checkpoint from which the model was loaded, or
            the first format that can represent the model.
        naming: For `"huggingface"`, `"later"` (transformers from version 5) or `"published"`. None for `"later"`.
        base: Path or name of the base model, such as `"hf:facebook/dinov2-small"`, to write in the adapter.

    Raises:
        CheckpointError: A `ValueError`. If the model has no LoRA, if weights other than the factors and the head are
            trainable, or if no format can represent the model.

    References:
        - [peft](https://github.com/huggingface/peft)

    Example:
    >>> model = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=2)
    >>> keras_vit.adapt(model, "lora(rank=2)")
    >>> keras_vit.save_adapter(model, "example/adapter", format="timm")
    'example/adapter'
    """
    check_own(model, VisionTransformer)
    folder = checks.path("folder", folder)
    check_writable(folder)
    rules, variables = written_rules(model, format, naming), weights_of(model)
    modules = {name: parts for name, parts in modules_of(model, rules).items() if any(p.lora_enabled for p in parts)}
    adapted = tuple(f"{layer.path}/" for parts in modules.values() for layer in parts)
    head = [path for path in variables if path.startswith(_HEAD) and not path.startswith(adapted)]
    trained = [
        v.path for v in model.trainable_variables if not (v.path.startswith(adapted) and "/lora_kernel" in v.path)
    ]
    bindings, unknown = bind_variables(rules, head)
    left_out = [*unknown, *(path for path in trained if path not in head)]
    if left_out or not modules:
        raise CheckpointError(
            "An adapter contains factors of LoRA, and the head. Received: a model "
            f"{'that trains ' + ', '.join(left_out[:5]) if modules else 'without LoRA'}. Choose the trained weights "
            "with keras_vit.adapt(model, 'lora(...)'), or save the model with model.save('model.keras')."
        )
    arrays: dict[str, np.ndarray] = {}
    scales: dict[str, tuple[int, float]] = {}  # module -> (rank, alpha)
    for name, parts in modules.items():
        arrays[f"{name}.lora_A.weight"], arrays[f"{name}.lora_B.weight"], scales[bare(name)] = _joined(parts)
    for binding in bindings:
        values = tuple(ops.convert_to_numpy(variables[path]) for path in binding.variables)
        arrays |= zip(binding.stored, binding.transform.write(values), strict=True)
    tensors = {name: TensorInfo(array.shape, np.dtype("float32")) for name, array in sorted(arrays.items())}
    os.makedirs(folder, exist_ok=True)
    with atomic_file(os.path.join(folder, WEIGHTS)) as temporary:
        write_safetensors(temporary, tensors, lambda name: np.asarray(arrays[name], "float32"))
    saved = dict.fromkeys(bare(name.rpartition(".")[0]) for binding in bindings for name in binding.stored)
    write_json(os.path.join(folder, adapter_config.FILE), adapter_config.document(scales, saved, base))
    return folder


def _open(folder: str) -> TensorSource:
    path, pickle = (os.path.join(folder, name) for name in (WEIGHTS, "adapter_model.bin"))
    if not os.path.isfile(path):
        if os.path.isfile(pickle):
            raise CheckpointError(PICKLE.format(path=pickle))
        raise FileNotFoundError(f"An adapter's folder must contain {WEIGHTS}. Received: {folder!r}.")
    return SafetensorsSource(path)


def _check_modules(
    config: AdapterConfig, modules: Modules, factors: list[str], whole: list[Binding], path: str
) -> None:
    """Raise an error if the modules differ from the configuration, or if modules other than the head are stored."""
    saved = {name.rpartition(".")[0]: binding.variables[0] for binding in whole for name in binding.stored}
    beside = [bare(name) for name, variable in saved.items() if not variable.startswith(_HEAD)]
    if beside:
        raise CheckpointError(f"{config.path}: modules_to_save may only name the head. Received: {', '.join(beside)}.")
    differing = [name for name in modules if config.is_target(bare(name)) != (name in factors)]
    differing += [name for name in {**modules, **saved} if config.is_saved(bare(name)) != (name in saved)]
    if differing:
        raise CheckpointError(
            f"{path} must contain the modules named by target_modules and modules_to_save in {config.path}. They "
            f"differ in {', '.join(map(bare, differing[:8]))}."
        )


def _read_factors(
    source: TensorSource, name: str, layers: list[DenseLayer], config: AdapterConfig
) -> Iterator[tuple[DenseLayer, np.ndarray, np.ndarray, float]]:
    """Yield (layer, A `[inputs, rank]`, B `[rank, outputs]`, alpha) for each layer of a module."""
    rank, alpha = config.rank_and_alpha(bare(name))
    sizes = [layer.flat_shape() for layer in layers]  # (inputs, outputs)
    ends = np.cumsum([outputs for _, outputs in sizes])
    a = _read(source, f"{name}.lora_A.weight", (rank, sizes[0][0])).T
    b = _read(source, f"{name}.lora_B.weight", (ends[-1], rank)).T
    for layer, part in zip(layers, np.split(b, ends[:-1], axis=1), strict=True):
        yield layer, a, part, alpha


def _read_head(model: keras.Model, source: TensorSource, bindings: list[Binding]) -> list[tuple[Any, np.ndarray]]:
    """Return the variables of the head and their values."""
    variables, found = weights_of(model), []
    for binding in bindings:
        stored = {name: source.tensors[name].shape for name in binding.stored}
        own = [tuple(variables[name].shape) if name in variables else None for name in binding.variables]
        if list(binding.variable_shapes(stored, 1)) != own:
            raise CheckpointError(
                f"{source.path} must contain a head with the model's shapes, {own}. Received: {stored}. Build the "
                "model with the `classes` and `pooling` of the adapter's model."
            )
        arrays = binding.transform.read(tuple(_read(source, name, shape) for name, shape in stored.items()), 1)
        found += [(variables[name], array) for name, array in zip(binding.variables, arrays, strict=True)]
    return found


def _read(source: TensorSource, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Check the header of a tensor, and return the tensor in float32."""
    found = source.tensors.get(name)
    if found is None or found.shape != shape or found.dtype.kind not in "fV":  # bfloat16 is of kind V
        raise CheckpointError(f"{source.path}: {name} must be a float tensor of shape {shape}. Received: {found}.")
    array = source.read(name).astype(np.float32)
    if not np.isfinite(array).all():
        raise CheckpointError(f"{source.path}: {name} contains NaN or infinity.")
    return array


def _check_ranks(model: keras.Model, ranks: dict[str, int], folder: str) -> None:
    """Raise an error if a model already has LoRA with other layers or ranks than the adapter."""
    for layer in lora_layers(model):
        if layer.lora_rank != ranks.get(layer.path):
            raise CheckpointError(
                f"`model` must have no LoRA, or LoRA as in {folder!r}. Received: {layer.path} with rank "
                f"{layer.lora_rank} ({ranks.get(layer.path)} in the folder). Call keras_vit.merge_adapter(model) first."
            )


def _joined(layers: list[DenseLayer]) -> tuple[np.ndarray, np.ndarray, tuple[int, float]]:
    """Return A `[rank, inputs]`, B `[outputs, rank]`, and (rank, alpha) for a matrix that concatenates several layers.

    The factors A of the layers are concatenated, and the factors B form a block diagonal matrix. Layers with equal A
    share A, and their factors B are concatenated.
    """
    own = [layer for layer in layers if layer.lora_enabled]
    a = [ops.convert_to_numpy(layer.lora_kernel_a) for layer in own]  # [inputs, rank]
    is_shared = all(np.array_equal(factor, a[0]) for factor in a)
    joined = a[0] if is_shared else np.concatenate(a, axis=1)
    scale, rank = own[0].lora_alpha / own[0].lora_rank or 1.0, joined.shape[1]
    b = np.zeros((rank, sum(layer.flat_shape()[1] for layer in layers)), "float32")
    row = column = 0
    for layer in layers:
        end = column + layer.flat_shape()[1]
        if layer.lora_enabled:
            factor = layer.lora_alpha / layer.lora_rank / scale  # 1 if all layers have the same scale
            b[row : row + layer.lora_rank, column:end] = factor * ops.convert_to_numpy(layer.lora_kernel_b)
            row += 0 if is_shared else layer.lora_rank
        column = end
    return joined.T, b.T, (rank, own[0].lora_alpha if is_shared else scale * rank)
