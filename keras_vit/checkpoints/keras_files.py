"""Open `.keras` files with Keras' reader, after a check of all sizes.

Keras' reader runs no code from a file and limits the expansion of the archive. However, before reading the weights,
Keras builds a model of whatever size the configuration requests.
"""

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import KINDS
from keras_vit.checkpoints.formats.keras import KerasFile
from keras_vit.checkpoints.formats.tensors import CheckpointError
from keras_vit.models import MAEConfig, MaskedPatchConfig, MaskedPatchPredictor, ViTConfig
from keras_vit.models.config import Config
from keras_vit.util.progress import Progress

_MAX_DEPTH = 100
_MAX_OBJECTS = 50_000  # layers, initializers and dtype policies
_MAX_TABLE = 2**26  # values of a position table that is computed, not stored
# Arguments that are sizes of layers.
_WIDTHS = {"units", "filters", "output_dim", "input_dim", "key_dim", "hidden_size", "mlp_dim", "rank", "lora_rank"}
_RUN_CODE = {"__lambda__", "TorchModuleWrapper", "TFSMLayer"}  # refused even if a process has disabled Keras' safe mode
_PACKED = 2  # weights per stored value, at int4
_REPLACED = 8  # the same if smaller layers replaced some layers
_CONFIGS: dict[str, type[Config]] = {
    MaskedPatchPredictor.__name__: MaskedPatchConfig,
    **{kind.model.__name__: kind.config for kind in KINDS.values()},
}


def load_keras_file(path: str | os.PathLike[str]) -> keras.Model:
    """Load a `.keras` file whose model consists of classes of this package and of Keras.

    The sizes of the archive's members, the configuration and the headers of the weights are checked before memory is
    allocated. Keras then loads the model in safe mode, without compiling it.
    """
    path = os.fspath(path)
    try:
        with Progress(f"Reading {path}"):
            with contextlib.closing(KerasFile(path)) as file:
                if file.config is None:
                    raise CheckpointError("it contains weights without a model; use keras_vit.load_checkpoint")
                check_config(file.config, [tensor.shape for tensor in file.tensors.values()], path)
            return keras.saving.load_model(path, compile=False, safe_mode=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # Keras, its backend and the classes of a file raise all kinds of errors
        reason = str(error).strip().removeprefix(f"{path}: ") or type(error).__name__
        raise CheckpointError(f"The model in {path} cannot be loaded: {reason[:2000]}") from error


def check_config(config: dict[str, Any], shapes: Sequence[Sequence[int]], path: str) -> None:
    """Refuse a configuration that can run code, or that describes a larger model than the file has weights for."""
    weights = sum(map(math.prod, shapes))
    for count, (value, depth) in enumerate(_objects(config)):
        if depth > _MAX_DEPTH or count > _MAX_OBJECTS:
            raise CheckpointError(f"{path}: config.json has over {_MAX_DEPTH} levels or {_MAX_OBJECTS} objects.")
        names = {str(value.get(key)).rpartition(">")[2] for key in ("class_name", "registered_name")}
        if found := names & _RUN_CODE:
            raise CheckpointError(f"{path}: config.json has an object of class {found.pop()}, which can run code.")
        for key in _WIDTHS & value.keys():
            if isinstance(value[key], int) and value[key] > weights:
                raise _disagreement(path, f"a layer has {key}={str(value[key])[:40]}, the file has {weights} weights")
        if isinstance(value.get("config"), dict) and _is_own(value):
            for name in names & _CONFIGS.keys():
                _check_arguments(_CONFIGS[name], value["config"], weights, len(shapes), path)


def resolve_arguments(config_class: type[Config], arguments: dict[str, Any], path: str) -> Config:
    """Check the arguments in `config.json`, and return the configuration with all defaults."""
    try:
        return config_class.from_dict(arguments)
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(f"{path}: config.json has invalid arguments: {str(error)[:500]}") from error


def _disagreement(path: str, problem: str) -> CheckpointError:
    return CheckpointError(f"{path}: config.json and the weights disagree: {problem}.")


def _is_own(value: dict[str, Any]) -> bool:
    """Return whether Keras looks up the class of an object in this package. Keras reads three fields of the object."""
    marks = {"module": "keras_vit", "registered_name": "keras_vit>", "class_name": "keras_vit>"}
    return any(str(value.get(key)).startswith(mark) for key, mark in marks.items())


def _objects(config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the objects of a configuration and their depths, without the configuration of `compile`."""
    pending: list[tuple[Any, int]] = [(config, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, dict):
            yield value, depth
            value = [item for key, item in value.items() if key != "compile_config"]
        elif depth > _MAX_DEPTH:
            yield {}, depth
        pending.extend((item, depth + 1) for item in value if isinstance(item, (dict, list)))


def _check_arguments(
    config_class: type[Config], arguments: dict[str, Any], weights: int, tensors: int, path: str
) -> None:
    """Refuse a model of this package if its arguments require more blocks or weights than the file contains."""
    if arguments.get("head") is not None:  # `check_config` checks the sizes of a custom head
        arguments = {**arguments, "head": None, "include_top": False}
    config = resolve_arguments(config_class, arguments, path)
    values = config.to_dict()
    stages = values.get("resnet_blocks") or values.get("block_sizes") or ()
    blocks = values.get("num_layers", 0) + values.get("decoder_num_layers", 0) + sum(stages)
    if blocks > tensors:
        raise _disagreement(path, f"the model has {blocks} blocks, but the file has {tensors} tensors")
    wanted, table = architecture.weights_of_blocks(values), 0
    if isinstance(config, ViTConfig):
        wanted += config.num_features * (config.classes or 0) if config.include_top else 0
        if config.image_size is not None:
            table = math.prod(config.grid) * config.hidden_size
    if isinstance(config, MAEConfig):
        wanted += architecture.weights_of_blocks(config.decoder.to_dict())
    weights *= _REPLACED if arguments.get("layers") else _PACKED
    if wanted > weights or table > max(weights, _MAX_TABLE):
        raise _disagreement(path, f"the model has at least {max(wanted, table)} weights, more than the file")
