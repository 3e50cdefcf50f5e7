"""peft's `adapter_config.json`: the modules that an adapter changes, and the rank and scale of each update.

References:
    - [peft](https://github.com/huggingface/peft), `tuners/lora/config.py` and `tuners/tuners_utils.py`
"""

import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from keras_vit.checkpoints.formats.tensors import MAX_JSON_BYTES, CheckpointError, parse_json

FILE = "adapter_config.json"
_NAME = re.compile(r"[\w.-]+")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and _NAME.fullmatch(name) for name in value)


def _is_off(value: Any) -> bool:
    return value is None or value is False or value in ("none", {}, [])


def _by_name(valid: Any) -> Any:
    return lambda value: isinstance(value, dict) and _are_names(list(value)) and all(map(valid, value.values()))


# Supported fields: peft's default, a check of the value, and a description of valid values.
_FIELDS: Mapping[str, tuple[Any, Any, str]] = {
    "peft_type": (None, lambda value: value == "LORA", "'LORA', the only supported method"),
    "init_lora_weights": (
        *(True, lambda value: value in (True, False, "gaussian", "eva", "orthogonal")),
        "a method that does not change the kernels (peft's path_initial_model_for_weight_conversion converts others)",
    ),
    "r": (8, _is_count, "a positive integer"),
    "lora_alpha": (8, _is_number, "a number"),
    "use_rslora": (False, lambda value: isinstance(value, bool), "a bool"),
    "rank_pattern": ({}, _by_name(_is_count), "ranks by the names of modules, without regular expressions"),
    "alpha_pattern": ({}, _by_name(_is_number), "numbers by the names of modules, without regular expressions"),
    "target_modules": ([], _are_names, "a list of the names of modules, without regular expressions"),
    "modules_to_save": ([], _are_names, "a list of the names of modules"),
}
# Fields that do not change the outputs.
_FREE: tuple[str, ...] = ("peft_version", "base_model_name_or_path", "revision", "auto_mapping", "task_type")
_FREE += ("inference_mode", "lora_dropout", "megatron_core", "qalora_group_size", "runtime_config")


class AdapterConfig:
    """Configuration of an adapter. Unsupported fields raise an error unless they do not change the outputs."""

    def __init__(self, folder: str):
        self.path = os.path.join(folder, FILE)
        if not os.path.isfile(self.path):
            raise FileNotFoundError(f"An adapter's folder must contain {FILE}. Received: {folder!r}.")
        with open(self.path, "rb") as file:
            stated = parse_json(file.read(MAX_JSON_BYTES + 1), self.path)
        self._fields = {name: default for name, (default, *_) in _FIELDS.items()}
        self._fields |= {name: stated[name] for name in _FIELDS if stated.get(name) is not None}
        for name, value in {**stated, **self._fields}.items():
            if name in _FIELDS:
                _, is_valid, expected = _FIELDS[name]
            elif name in _FREE:
                continue
            else:
                is_valid, expected = _is_off, f"unset: keras_vit supports {', '.join(_FIELDS)}"
            if not is_valid(value):
                raise CheckpointError(f"{self.path}: {name} must be {expected}. Received: {name}={str(value)[:100]!r}.")

    def is_target(self, module: str) -> bool:
        """Return whether the adapter has factors for a module."""
        return not self.is_saved(module) and any(_ends(module, name) for name in self._fields["target_modules"])

    def is_saved(self, module: str) -> bool:
        """Return whether the adapter contains all weights of a module or of a parent module."""
        return any(f".{name}." in f".{module}." for name in self._fields["modules_to_save"])

    def rank_and_alpha(self, module: str) -> tuple[int, float]:
        """Return the rank and alpha of a module. The scale of the module's update is `alpha / rank`."""
        rank, alpha = (self._of(module, *names) for names in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha")))
        return rank, alpha * rank**0.5 if self._fields["use_rslora"] else alpha

    def _of(self, module: str, by_name: str, default: str) -> Any:
        own = (value for name, value in self._fields[by_name].items() if _ends(module, name))
        return next(own, self._fields[default])


def _ends(module: str, name: str) -> bool:
    """Return whether a module has a name, which may omit the names of parent modules."""
    return f".{module}".endswith(f".{name}")


def document(scales: Mapping[str, tuple[int, float]], saved: Iterable[str], base: str | None) -> dict[str, Any]:
    """Return the content of an adapter's configuration, given the rank and alpha of each module with factors."""
    ranks, alphas = ([scale[index] for scale in scales.values()] for index in (0, 1))
    rank, alpha = (max(values, key=values.count) for values in (ranks, alphas))
    name, _, revision = base.removeprefix("hf:").partition("@") if base and base.startswith("hf:") else (base, "", "")
    return {
        "alpha_pattern": {module: own for module, (_, own) in scales.items() if own != alpha},
        "base_model_name_or_path": name,
        "bias": "none",
        "inference_mode": True,
        "lora_alpha": alpha,
        "modules_to_save": list(saved) or None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {module: own for module, (own, _) in scales.items() if own != rank},
        "revision": revision or None,
        "target_modules": list(scales),
    }
