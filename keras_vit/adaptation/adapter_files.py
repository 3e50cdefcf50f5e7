"""Adapters of peft: the factors of LoRA, and the head, in a folder of their own.

References:
    - [LoRA](https://arxiv.org/abs/2106.09685)
    - [peft](https://github.com/huggingface/peft)
"""

import contextlib
import dataclasses
import itertools
import os
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_vit import _checks
from keras_vit._io import atomic_file, check_writable, write_json
from keras_vit.adaptation import adapter_config
from keras_vit.adaptation.adapter_config import AdapterConfig
from keras_vit.checkpoints import CheckpointError, families
from keras_vit.checkpoints.checkpoint import Layout
from keras_vit.checkpoints.formats.safetensors import SafetensorsSource, write_safetensors
from keras_vit.checkpoints.formats.tensors import PICKLE, TensorInfo, TensorSource
from keras_vit.checkpoints.match import weights_of
from keras_vit.checkpoints.rules import Binding, Rule, bind_stored, bind_variables
from keras_vit.checkpoints.save import layout_of
from keras_vit.layers import Dense, EinsumDense
from keras_vit.models import VisionTransformer, layer_walk
from keras_vit.models.base import check_own

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(.+)\.lora_([AB])\.weight")
_HEAD = ("head/", "head_dist/")

DenseLayer = Dense | EinsumDense
Modules = dict[str, list[DenseLayer]]  # the layers whose kernels a stored matrix has, one after the other


@dataclasses.dataclass
class _Names:
    """The names in an adapter, in one of the naming schemes."""

    modules: Modules  # of the model
    factors: list[str]  # modules with factors
    whole: list[Binding]  # tensors of modules that are stored whole
    unknown: list[str]  # modules and tensors that the scheme does not have


def load_adapter(model: keras.Model, folder: str | os.PathLike[str]) -> None:
    """Load an adapter of peft into a model: the factors of LoRA, and the head.

    Adapters of transformers' ViT, DeiT, DINOv2, DINOv3 and SigLIP are read, with the names of all versions, and
    adapters of timm's models. An adapter of a matrix that has query, key and value becomes one of each: the three begin
    with the same first factor. Afterwards only the factors and the head are trained. Everything is checked before the
    model changes.

    Args:
        model: A `VisionTransformer` with the weights of the adapter's base.
        folder: Directory with `adapter_config.json` and `adapter_model.safetensors`.

    Raises:
        CheckpointError: A `ValueError`. If the adapter does not fit the model, or has what is not known: other methods
            than LoRA, DoRA, trained biases, or whole modules beside the head. The message names it.
        FileNotFoundError: If one of the two files is missing.

    References:
        - [LoRA](https://arxiv.org/abs/2106.09685)
        - [peft](https://github.com/huggingface/peft)

    Example:
    >>> model = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=2)
    >>> model = keras_vit.adapt(model, "lora(rank=2, layers='query|value')")
    >>> folder = keras_vit.save_adapter(model, "example/adapter")
    >>> base = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=2)
    >>> keras_vit.load_adapter(base, folder)
    >>> base.get_layer("encoderblock_0").attention.query.lora_rank
    2
    """
    check_own(model, VisionTransformer)
    folder = _checks.path("folder", folder)
    config = adapter_config.read_config(folder)
    with contextlib.closing(_open(folder)) as source:
        names = _recognize(model, source)
        _check_modules(config, names, source)
        found = [part for module in names.factors for part in _read_factors(source, module, names, config)]
        _check_ranks(model, {layer.path: a.shape[1] for layer, a, _, _ in found}, folder)
        head = _read_head(model, source, names.whole)
    for variable, value in head:
        variable.assign(value)
    for layer, a, b, alpha in found:
        if not layer.lora_enabled:
            layer.enable_lora(a.shape[1])
        layer.lora_alpha = alpha
        layer.lora_kernel_a.assign(a)
        layer.lora_kernel_b.assign(b)
    for variable in model.trainable_variables:
        variable.trainable = "lora_kernel" in variable.name or variable.path.startswith(_HEAD)
    model.train_function = model.test_function = model.predict_function = None  # they were traced without the factors


def save_adapter(
    model: keras.Model,
    folder: str | os.PathLike[str],
    format: str | None = None,  # noqa: A002
    *,
    naming: str | None = None,
    base: str | None = None,
) -> str:
    """Write the factors of LoRA and the head of a model as an adapter of peft, and return the path.

    peft opens the folder with the base that the model was made of: `PeftModel.from_pretrained(base, folder)`. Where the
    base has one matrix for query, key and value, the adapter of it has the factors of the three beside each other,
    unless their first factors are equal.

    Args:
        model: A `VisionTransformer` with LoRA.
        folder: Directory to write `adapter_config.json` and `adapter_model.safetensors` to.
        format: `"huggingface"` or `"timm"`. None for the format that the model was read from, or the first that can
            hold it.
        naming: `"later"` (transformers from version 5 on) or `"published"` for `"huggingface"`. None for the first.
        base: Name or path of the base, for peft's `AutoPeftModel`.

    Raises:
        CheckpointError: A `ValueError`. If the model has no LoRA, or if it or what is trained in it has no place in the
            adapter.

    References:
        - [peft](https://github.com/huggingface/peft)

    Example:
    >>> model = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=2)
    >>> model = keras_vit.adapt(model, "lora(rank=2)")
    >>> sorted(os.listdir(keras_vit.save_adapter(model, "example/adapter", format="timm")))
    ['adapter_config.json', 'adapter_model.safetensors']
    """
    check_own(model, VisionTransformer)
    folder = _checks.path("folder", folder)
    check_writable(folder)
    layers = {layer.path: layer for layer in _dense_layers(model) if layer.lora_enabled}
    if not layers:
        raise CheckpointError("`model` must have LoRA. Received: a model without. Save it with save_checkpoint.")
    rules = _written_rules(model, format, naming)
    modules = {name: parts for name, parts in _modules(model, rules).items() if any(p.path in layers for p in parts)}
    variables = {path: variable for path, variable in weights_of(model).items() if path.startswith(_HEAD)}
    factors = {layer.path for parts in modules.values() for layer in parts}
    others = [v.path for v in model.trainable_variables if v.path not in variables and "lora_kernel" not in v.name]
    if others or layers.keys() - factors:
        raise CheckpointError(
            "An adapter has the factors of LoRA and the head. Received: a model in which "
            f"{', '.join([*others, *(layers.keys() - factors)][:5])} are trained, too. Freeze them, or save the model with "
            "model.save('model.keras')."
        )
    arrays, scales = {}, {}
    for name, parts in modules.items():
        a, b, scales[_bare(name)] = _joined(parts)
        arrays[f"{name}.lora_A.weight"], arrays[f"{name}.lora_B.weight"] = a, b
    bindings, _ = bind_variables(rules, [path for path in variables if "lora_kernel" not in path])
    for binding in bindings:
        values = tuple(keras.ops.convert_to_numpy(variables[path]) for path in binding.variables)
        arrays |= zip(binding.stored, binding.transform.write(values), strict=True)
    saved = dict.fromkeys(name.rpartition(".")[0] for binding in bindings for name in binding.stored)
    arrays = {name: np.ascontiguousarray(array, "float32") for name, array in sorted(arrays.items())}
    tensors = {name: TensorInfo(array.shape, array.dtype) for name, array in arrays.items()}
    os.makedirs(folder, exist_ok=True)
    with atomic_file(os.path.join(folder, WEIGHTS)) as temporary:
        write_safetensors(temporary, tensors, arrays.__getitem__)
    write_json(os.path.join(folder, adapter_config.FILE), adapter_config.document(scales, map(_bare, saved), base))
    return folder


def _open(folder: str) -> TensorSource:
    path = os.path.join(folder, WEIGHTS)
    if os.path.isfile(path):
        return SafetensorsSource(path)
    pickle = os.path.join(folder, "adapter_model.bin")
    if os.path.isfile(pickle):
        raise CheckpointError(PICKLE.format(path=pickle))
    raise FileNotFoundError(f"Expected the folder of an adapter, with {WEIGHTS}. There is none in {folder!r}.")


def _dense_layers(model: keras.Model) -> list[DenseLayer]:
    return [layer for layer in layer_walk.layers_of(model) if isinstance(layer, (Dense, EinsumDense))]


def _modules(model: keras.Model, rules: list[Rule]) -> Modules:
    """Return the layers of each stored matrix in a naming scheme."""
    layers = {f"{layer.path}/kernel": layer for layer in _dense_layers(model)}
    found: Modules = {}
    for binding in bind_variables(rules, layers, depth=model.config.num_layers)[0]:
        parts = [layers[name] for name in binding.variables]
        count = len(parts) - len(binding.stored) + 1  # only the first matrix can be that of several layers
        for name in binding.stored:
            found[name.removesuffix(".weight")], parts, count = parts[:count], parts[count:], 1
    return found


def _recognize(model: keras.Model, source: TensorSource) -> _Names:
    """Return an adapter's names in the naming scheme that has them all."""
    factors = dict.fromkeys(match[1] for name in source.tensors if (match := _FACTOR.fullmatch(name)))
    others = [name for name in source.tensors if not _FACTOR.fullmatch(name)]
    if not factors:
        raise CheckpointError(f"{source.path} has no factors of LoRA: no tensor is named MODULE.lora_A.weight.")
    candidates = []
    for family, layout in ((family, layout) for family in families.FAMILIES for layout in family.layouts):
        own = _modules(model, family.rules(layout))
        prefixes = {factor.removesuffix(name) for factor in factors for name in own if factor.endswith(f".{name}")}
        for prefix in sorted(prefixes):
            for outer in itertools.accumulate(re.findall(r"[^.]*\.", prefix)):
                rules = family.rules(dataclasses.replace(layout, prefix=prefix, outer=outer))
                modules, (whole, unknown) = _modules(model, rules), bind_stored(rules, others)
                unknown += [name for name in factors if name not in modules]
                candidates.append(_Names(modules, list(factors), whole, unknown))
    names = min(candidates, key=lambda names: len(names.unknown), default=_Names({}, [], [], list(factors)))
    if names.unknown:
        raise CheckpointError(
            f"{source.path} has what is no dense layer and no head of the model: {', '.join(names.unknown[:8])}. Expected "
            "the names of transformers' ViT, DeiT, DINOv2, DINOv3 and SigLIP, or of timm."
        )
    return names


def _check_modules(config: AdapterConfig, names: _Names, source: TensorSource) -> None:
    """Refuse other modules than those that the configuration names, and whole ones beside the head."""
    for binding in names.whole:
        if not binding.variables[0].startswith(_HEAD):
            raise CheckpointError(
                f"{config.path}: modules_to_save must be the head. Received: {list(config.saved)}, and {binding.stored}."
            )
    saved = {name.rpartition(".")[0] for binding in names.whole for name in binding.stored}
    differing = [module for module in names.modules if config.is_target(_bare(module)) != (module in names.factors)]
    differing += [module for module in {*names.modules, *saved} if config.is_saved(_bare(module)) != (module in saved)]
    if differing:
        raise CheckpointError(
            f"{source.path} must have the modules that target_modules and modules_to_save of {config.path} name. They "
            f"differ in {', '.join(map(_bare, differing[:8]))}."
        )


def _bare(module: str) -> str:
    return module.removeprefix(_PREFIX)


def _read_factors(
    source: TensorSource, module: str, names: _Names, config: AdapterConfig
) -> Iterator[tuple[DenseLayer, np.ndarray, np.ndarray, float]]:
    """Yield each layer of a module with A `[inputs, rank]`, B `[rank, outputs]` and alpha."""
    layers, (rank, alpha) = names.modules[module], config.rank_and_alpha(_bare(module))
    sizes = [layer._flat_shape() for layer in layers]  # (inputs, outputs)
    a = _read(source, f"{module}.lora_A.weight", (rank, sizes[0][0])).T
    b = _read(source, f"{module}.lora_B.weight", (sum(outputs for _, outputs in sizes), rank)).T
    ends = np.cumsum([outputs for _, outputs in sizes])
    for layer, part in zip(layers, np.split(b, ends[:-1], axis=1), strict=True):
        yield layer, a, part, alpha


def _read_head(model: keras.Model, source: TensorSource, bindings: list[Binding]) -> list[tuple[Any, np.ndarray]]:
    """Return the variables of the head with their values."""
    variables, found = weights_of(model), []
    for binding in bindings:
        stored = {name: source.tensors[name].shape for name in binding.stored}
        own = [tuple(variables[name].shape) if name in variables else None for name in binding.variables]
        if list(binding.variable_shapes(stored, 1)) != own:
            raise CheckpointError(
                f"{source.path} has a head of other shapes, {stored}, than the model, {own}. Build the model with the "
                "`classes` of the adapter."
            )
        arrays = binding.transform.read(tuple(_read(source, name, shape) for name, shape in stored.items()), 1)
        found += [(variables[name], array) for name, array in zip(binding.variables, arrays, strict=True)]
    return found


def _read(source: TensorSource, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a tensor in single precision, after checking its header."""
    found = source.tensors.get(name)
    is_real = found and (np.issubdtype(found.dtype, np.floating) or found.dtype.name == "bfloat16")
    if found is None or found.shape != shape or not is_real:
        raise CheckpointError(f"{source.path}: {name} must have real numbers of shape {shape}. Received: {found}.")
    array = source.read(name).astype(np.float32)
    if not np.isfinite(array).all():
        raise CheckpointError(f"{source.path}: {name} has NaN or infinity.")
    return array


def _check_ranks(model: keras.Model, ranks: dict[str, int], folder: str) -> None:
    """Refuse a model with LoRA that is not that of the adapter."""
    for layer in _dense_layers(model):
        if layer.lora_enabled and layer.lora_rank != ranks.get(layer.path):
            raise CheckpointError(
                f"`model` must have no LoRA, or that of {folder!r}. Received: {layer.path} with rank {layer.lora_rank}, "
                f"{ranks.get(layer.path)} in the folder. Call keras_vit.merge_adapter(model) first, or build it again."
            )


def _written_rules(model: keras.Model, format: str | None, naming: str | None) -> list[Rule]:  # noqa: A002
    """Return the rules of the format that a model is written in."""
    read = getattr(getattr(model, "checkpoint_layout", None), "family", None)
    formats = (format,) if format else sorted(("huggingface", "timm"), key=lambda name: name != read)
    config = model.config.to_dict()
    for name in formats:
        _checks.choice("format", name, ("huggingface", "timm"))
        try:
            family, writing = families.writing_family(name, "vit", config)
            break
        except CheckpointError:
            if name == formats[-1]:
                raise
    styles = writing.styles
    layout = layout_of(model, family.name, writing, config, naming or ("later" if "later" in styles else None), None)
    prefixes = {"prefix": _PREFIX + layout.prefix, "outer": _PREFIX + layout.outer}
    return family.rules(dataclasses.replace(layout, **prefixes))


def _joined(layers: list[DenseLayer]) -> tuple[np.ndarray, np.ndarray, tuple[int, float]]:
    """Return A `[rank, inputs]`, B `[outputs, rank]`, rank and alpha of the update of a matrix of several layers.

    The factors of the layers are beside each other, and B is zero where they do not meet, unless their A is the same.
    """
    own = [layer for layer in layers if layer.lora_enabled]
    pairs = [[keras.ops.convert_to_numpy(w) for w in (layer.lora_kernel_a, layer.lora_kernel_b)] for layer in own]
    scales = [layer.lora_alpha / layer.lora_rank for layer in own]
    is_shared = all(np.array_equal(a, pairs[0][0]) for a, _ in pairs)
    a = pairs[0][0] if is_shared else np.concatenate([a for a, _ in pairs], axis=1)  # [inputs, rank]
    b = np.zeros((a.shape[1], sum(layer._flat_shape()[1] for layer in layers)), np.float32)
    column = row = 0
    for layer in layers:
        outputs = layer._flat_shape()[1]
        if layer.lora_enabled:
            (_, part), scale = pairs.pop(0), layer.lora_alpha / layer.lora_rank
            b[row : row + len(part), column : column + outputs] = part if scale == scales[0] else part * (scale / scales[0])
            row += 0 if is_shared else len(part)
        column += outputs
    return a.T, b.T, (len(b), scales[0] * len(b) if len(own) > 1 and not is_shared else own[0].lora_alpha)
