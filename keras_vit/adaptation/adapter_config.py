"""`adapter_config.json` of peft: the modules that an adapter changes, and by how much.

References:
    - [peft](https://github.com/huggingface/peft), `tuners/lora/config.py` and `tuners/tuners_utils.py`
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.formats.tensors import MAX_JSON_BYTES, parse_json

FILE = "adapter_config.json"
# Fields that are read here, those that do not change the outputs, and the values that switch any other field off.
_READ = ("r", "lora_alpha", "target_modules", "exclude_modules", "modules_to_save", "rank_pattern", "alpha_pattern")
_READ += ("use_rslora", "layers_to_transform", "layers_pattern", "init_lora_weights", "peft_type")
_FREE = ("peft_version", "base_model_name_or_path", "revision", "auto_mapping", "task_type", "inference_mode")
_FREE += ("lora_dropout", "megatron_core", "qalora_group_size", "runtime_config")
_OFF = (None, False, "none", {}, [])
# Initial values of the factors, beside which the kernels keep theirs.
_INITIAL = (None, True, False, "gaussian", "eva", "orthogonal")
_MAX_PATTERN = 2000  # characters of a regular expression

Modules = str | tuple[str, ...]  # a regular expression of whole names, or names and their endings


@dataclasses.dataclass(frozen=True)
class AdapterConfig:
    """Configuration of an adapter.

    Attributes:
        path: Name of the file, for messages.
        rank: Rank of the factors where `rank_pattern` has no other.
        alpha: Factor of the update, before the division by the rank, where `alpha_pattern` has no other.
        targets: Modules with factors.
        excluded: Modules among the targets without factors.
        saved: Modules that are stored whole.
        rank_pattern: Ranks by regular expressions of the ends of names.
        alpha_pattern: Alphas, likewise.
        use_rslora: Whether the update is divided by the root of the rank.
        blocks: Indices of the blocks with factors; None for all.
        block_names: Names before these indices; any if empty.
    """

    path: str
    rank: int
    alpha: float
    targets: Modules
    excluded: Modules = ()
    saved: tuple[str, ...] = ()
    rank_pattern: Mapping[str, int] = dataclasses.field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = dataclasses.field(default_factory=dict)
    use_rslora: bool = False
    blocks: tuple[int, ...] | None = None
    block_names: tuple[str, ...] = ()

    def is_target(self, module: str) -> bool:
        """Return whether a module has factors."""
        if _matches(self.excluded, module) or self.is_saved(module) or not _matches(self.targets, module):
            return False
        if self.blocks is None or isinstance(self.targets, str):
            return True
        names = [rf"(?:^|.*?\.){name}\.(\d+)\." for name in self.block_names] or [r".*?\.[^.]*\.(\d+)\."]
        found = next((match for name in names if (match := re.match(name, module))), None)
        return found is not None and int(found[1]) in self.blocks

    def is_saved(self, module: str) -> bool:
        """Return whether a module is stored whole, or is in one that is."""
        return any(re.match(rf"(^|.*\.){name}($|\..*)", module) for name in self.saved)

    def rank_and_alpha(self, module: str) -> tuple[int, float]:
        """Return the rank of a module's factors, and the alpha of an update that is divided by the rank."""
        rank = _of_module(self.rank_pattern, module, self.rank)
        alpha = _of_module(self.alpha_pattern, module, self.alpha)
        return rank, alpha * rank**0.5 if self.use_rslora else alpha


def _matches(modules: Modules, name: str) -> bool:
    if isinstance(modules, str):
        return re.fullmatch(modules, name) is not None
    return any(name == module or name.endswith(f".{module}") for module in modules)


def _of_module(pattern: Mapping[str, Any], module: str, default: Any) -> Any:
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def read_config(folder: str) -> AdapterConfig:
    """Read the configuration of an adapter, and refuse all that would change its outputs and is not known."""
    path = os.path.join(folder, FILE)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"Expected the folder of an adapter, with {FILE}. There is none in {folder!r}.")
    with open(path, "rb") as file:
        document = parse_json(file.read(MAX_JSON_BYTES + 1), path)
    if document.get("peft_type") != "LORA":
        raise _refused(path, "peft_type", document.get("peft_type"), "'LORA'; other adapters of peft are not read")
    for name, value in document.items():
        if name not in (*_READ, *_FREE) and value not in _OFF:
            raise _refused(path, name, value, "off: adapters with it are not read")
    if document.get("init_lora_weights") not in _INITIAL:
        advice = "one that leaves the kernels as they are. Convert the adapter with peft's save_pretrained("
        advice += "path_initial_model_for_weight_conversion=...)"
        raise _refused(path, "init_lora_weights", document["init_lora_weights"], advice)

    def field(name: str, valid: Any, expected: str, default: Any = None) -> Any:
        value = document.get(name)
        value = default if value is None else value
        if not valid(value):
            raise _refused(path, name, value, expected)
        return value

    def texts(name: str) -> Modules:
        value = field(name, lambda v: isinstance(v, str) or _are(v, str), "a text or a list of texts", [])
        return _checked(value, path, name) if isinstance(value, str) else tuple(value)

    def patterns(name: str, valid: Any) -> dict[str, Any]:
        value = field(name, lambda v: isinstance(v, dict) and all(map(valid, v.values())), "numbers by name", {})
        return {_checked(key, path, name): number for key, number in value.items()}

    several = "a list of names"
    blocks = field("layers_to_transform", lambda v: _is_count(v, 0) or _are(v, int), "a list of indices", [])
    block_names = texts("layers_pattern")
    return AdapterConfig(
        path,
        field("r", _is_count, "a positive integer", 8),
        field("lora_alpha", _is_number, "a number", 8),
        texts("target_modules"),
        texts("exclude_modules"),
        tuple(_checked(name, path, "modules_to_save") for name in field("modules_to_save", _are_texts, several, [])),
        patterns("rank_pattern", _is_count),
        patterns("alpha_pattern", _is_number),
        field("use_rslora", lambda v: isinstance(v, bool), "a bool", False),
        (blocks,) if isinstance(blocks, int) else tuple(blocks) or None,
        tuple(_checked(name, path, "layers_pattern") for name in _as_tuple(block_names)),
    )


def _as_tuple(value: Modules) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def _are_texts(values: Any) -> bool:
    return _are(values, str)


def _is_count(value: Any, minimum: int = 1) -> bool:
    return type(value) is int and minimum <= value < 2**31


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30


def _checked(pattern: str, path: str, name: str) -> str:
    """Return a regular expression, after checking that it is one."""
    try:
        re.compile(pattern if len(pattern) <= _MAX_PATTERN else "(")
    except re.error as error:
        raise _refused(path, name, pattern, f"a regular expression ({error})") from error
    return pattern


def _refused(path: str, name: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(f"{path}: {name} must be {expected}. Received: {name}={str(value)[:100]!r}.")


def document(
    scales: Mapping[str, tuple[int, float]], saved: Iterable[str], base: str | None
) -> dict[str, Any]:
    """Return the configuration of an adapter from the rank and alpha of each module with factors."""
    ranks, alphas = ([scale[index] for scale in scales.values()] for index in (0, 1))
    rank, alpha = (max(values, key=values.count) for values in (ranks, alphas))
    return {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": alpha,
        "alpha_pattern": {name: own for name, (_, own) in scales.items() if own != alpha},
        "modules_to_save": list(saved) or None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {name: own for name, (own, _) in scales.items() if own != rank},
        "target_modules": list(scales),
        "task_type": None,
        "use_dora": False,
        "use_rslora": False,
    }
