"""peft's `adapter_config.json`: the modules that an adapter changes, and the rank and scale of each update.

References:
    - [peft](https://github.com/huggingface/peft), `tuners/lora/config.py` and `tuners/tuners_utils.py`
"""

import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from keras_vit.adaptation.patterns import Pattern
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats.tensors import MAX_JSON_BYTES, parse_json

FILE = "adapter_config.json"
_MAX_PATTERNS = 1000
_NAME = re.compile(r"[\w.-]+")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(_end(value))
    except (ValueError, re.error):
        return False


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _end(key: str) -> Pattern:
    """Return the expression that peft derives from a key of `rank_pattern`. It matches the end of a module's name."""
    return Pattern(rf"(.*\.)?({key})$")


def _all(valid: Any, kind: Any) -> Any:
    return lambda values: isinstance(values, kind) and all(map(valid, values))


def _patterns(valid: Any) -> Any:
    return lambda values: (
        _all(_is_pattern, dict)(values) and len(values) <= _MAX_PATTERNS and all(map(valid, values.values()))
    )


def _one_or_several(valid: Any, other: Any = None) -> Any:
    return lambda value: valid(value) or _all(other or valid, list)(value)


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
    "rank_pattern": ({}, _patterns(_is_count), "ranks by regular expressions"),
    "alpha_pattern": ({}, _patterns(_is_number), "numbers by regular expressions"),
    "target_modules": ([], _one_or_several(_is_pattern, _is_name), "a regular expression or a list of names"),
    "exclude_modules": ([], _one_or_several(_is_pattern, _is_name), "a regular expression or a list of names"),
    "modules_to_save": ([], _all(_is_name, list), "a list of names"),
    "layers_to_transform": ([], _one_or_several(lambda value: type(value) is int), "indices of blocks"),
    "layers_pattern": ([], _one_or_several(_is_name), "names before the indices of blocks"),
}
# Fields that do not change the outputs, and the values that disable any other field.
_FREE: tuple[str, ...] = ("peft_version", "base_model_name_or_path", "revision", "auto_mapping", "task_type")
_FREE += ("inference_mode", "lora_dropout", "megatron_core", "qalora_group_size", "runtime_config")
_OFF: tuple[Any, ...] = (None, False, "none", {}, [])


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
            else:
                is_valid, expected = (name in _FREE or value in _OFF), "disabled: keras_vit does not support it"
            if not (is_valid if isinstance(is_valid, bool) else is_valid(value)):
                raise CheckpointError(f"{self.path}: {name} must be {expected}. Received: {name}={str(value)[:100]!r}.")
        self._ends = {key: _end(key) for name in ("rank_pattern", "alpha_pattern") for key in self._fields[name]}

    def is_target(self, module: str) -> bool:
        """Return whether the adapter has factors for a module."""
        if self.is_saved(module) or self._matches("exclude_modules", module):
            return False
        blocks = _several(self._fields["layers_to_transform"])
        if not blocks or isinstance(self._fields["target_modules"], str) or not self._matches("target_modules", module):
            return self._matches("target_modules", module)
        names = list(map(re.escape, _several(self._fields["layers_pattern"]))) or [r"[^.]*"]
        found = [match for name in names if (match := re.match(rf"(?:^|.*?\.){name}\.(?P<index>\d+)\.", module))]
        return bool(found) and int(found[0]["index"]) in blocks

    def is_saved(self, module: str) -> bool:
        """Return whether the adapter contains all weights of a module or of a parent module."""
        return any(f".{name}." in f".{module}." for name in self._fields["modules_to_save"])

    def rank_and_alpha(self, module: str) -> tuple[int, float]:
        """Return the rank and alpha of a module. The scale of the module's update is `alpha / rank`."""
        rank, alpha = (self._of(module, *names) for names in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha")))
        return rank, alpha * rank**0.5 if self._fields["use_rslora"] else alpha

    def _of(self, module: str, pattern: str, default: str) -> Any:
        own = (value for key, value in self._fields[pattern].items() if self._ends[key].fullmatch(module))
        return next(own, self._fields[default])

    def _matches(self, field: str, name: str) -> bool:
        modules = self._fields[field]
        if isinstance(modules, str):
            return Pattern(modules).fullmatch(name)
        return any(f".{name}".endswith(f".{module}") for module in modules)


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


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
