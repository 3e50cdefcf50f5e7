"""Recipes from dictionaries and from the command line, with every type and range checked."""

import ast
import dataclasses
import difflib
import types
import typing

from keras_vit.recipe.fields import Recipe

CHOICES = {
    "precision": ("float32", "mixed_bfloat16", "bfloat16"),
    "jit": ("auto", "on", "off"),
    "loss": ("softmax", "sigmoid"),
    "model.head": ("auto", "keep", "reset"),
    "model.remat": (None, "none", "blocks"),
    "data.on_bad_image": ("error", "skip"),
    "optim.name": ("sgd", "adam", "adamw"),
    "optim.momentum_dtype": ("float32", "bfloat16"),
    "optim.schedule.name": ("constant", "cosine", "linear", "rsqrt", "steps"),
}
AT_LEAST = {
    "total_steps": 1,
    "steps_per_loop": 1,
    "keep_checkpoints": 1,
    "log_every": 0,
    "eval_every": 0,
    "checkpoint_every": 0,
    "label_smoothing": 0,
    "data.batch_size": 1,
    "data.eval_batch_size": 1,
    "data.mixup": 0,
    "data.cutmix": 0,
    "optim.learning_rate": 0,
    "optim.weight_decay": 0,
    "optim.clip_norm": 0,
    "optim.accumulation_steps": 1,
    "optim.schedule.warmup_steps": 0,
}


def to_dict(recipe: Recipe) -> dict:
    """Returns the recipe as plain dictionaries, ready for JSON."""
    return dataclasses.asdict(recipe)


def from_dict(values: dict) -> Recipe:
    """Builds a recipe from plain dictionaries, such as `config.json` holds.

    Args:
        values: fields by name; a missing one keeps its default.

    Returns:
        The recipe, checked.

    Raises:
        ValueError: for an unknown field, a wrong type or a value out of range.
    """
    return check(_build(Recipe, values, prefix=""))


def check(recipe: Recipe) -> Recipe:
    """Returns the recipe if the type and range of every field are right.

    Raises:
        ValueError: naming the field, what was expected and what came.
    """
    recipe = _build(Recipe, to_dict(recipe), prefix="")
    for path, allowed in CHOICES.items():
        value = get(recipe, path)
        if value not in allowed:
            raise ValueError(f"{path} must be one of {', '.join(map(repr, allowed))}. Received: {path}={value!r}")
    for path, least in AT_LEAST.items():
        value = get(recipe, path)
        if value is not None and value < least:
            raise ValueError(f"{path} must be at least {least}. Received: {path}={value}")
    batch_size, micro_batches = recipe.data.batch_size, recipe.optim.accumulation_steps
    if batch_size % micro_batches:
        raise ValueError(
            f"data.batch_size must be a multiple of optim.accumulation_steps={micro_batches}. Received: "
            f"data.batch_size={batch_size}. The nearest that works is {nearest_multiple(batch_size, micro_batches)}."
        )
    return recipe


def get(recipe: Recipe, path: str):
    """Returns the field at a dotted path.

    Raises:
        ValueError: if there is no such field; names the nearest one.
    """
    value, passed = recipe, []
    for name in path.split("."):
        names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        if name not in names:
            raise ValueError(_unknown(".".join([*passed, name]), names, passed))
        value = getattr(value, name)
        passed.append(name)
    return value


def override(recipe: Recipe, path: str, text: str) -> Recipe:
    """Return a recipe with one field set from the command line.

    Args:
        recipe: The recipe before.
        path: Dotted path of the field.
        text: The value as Python writes it, a string without quotes. An empty text or `None` means None where a field
            may be None.

    Raises:
        ValueError: If there is no such field, or the value is of the wrong type.
    """
    current = get(recipe, path)
    if dataclasses.is_dataclass(current):
        names = ", ".join(f"{path}.{field.name}" for field in dataclasses.fields(current))
        raise ValueError(f"{path} is a group of fields. Set one of them: {names}.")
    values = to_dict(recipe)
    *parents, name = path.split(".")
    group = values
    for parent in parents:
        group = group[parent]
    group[name] = _parse(text, _annotation(path), path)
    return _build(Recipe, values, prefix="")


def _annotation(path: str):
    """Return the annotated type of the field at a dotted path."""
    kind = Recipe
    for name in path.split("."):
        kind = {field.name: field.type for field in dataclasses.fields(kind)}[name]
    return kind


def _parse(text: str, expected, path: str):
    """Return the value that a text on the command line means for a field of type `expected`."""
    if isinstance(expected, types.UnionType):  # X | None
        return None if text in ("", "None") else _parse(text, typing.get_args(expected)[0], path)
    if expected is str:
        return text
    if expected is bool and text.lower() in ("true", "false", "1", "0"):
        return text.lower() in ("true", "1")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = text
    if typing.get_origin(expected) is tuple and not isinstance(value, (tuple, list)):
        value = (value,) if text else ()
    return value


def nearest_multiple(number: int, divisor: int) -> int:
    """Returns the positive multiple of `divisor` nearest to `number`."""
    return max(divisor, divisor * round(number / divisor))


def _unknown(path: str, names: list[str], parents: list[str]) -> str:
    near = difflib.get_close_matches(path.rsplit(".", 1)[-1], names, n=1, cutoff=0.4)
    hint = f" Did you mean {'.'.join([*parents, near[0]])}?" if near else ""
    known = f" Known fields there: {', '.join(names)}." if names else " It has no fields of its own."
    return f"The recipe has no field {path}.{hint}{known}"


def _build(kind: type, values: dict, prefix: str):
    """Builds dataclass `kind` from a dictionary, recursively, checking each type."""
    if not isinstance(values, dict):
        raise ValueError(f"{prefix.rstrip('.') or 'A recipe'} must be a dictionary of fields. Received: {values!r}")
    fields = {field.name: field.type for field in dataclasses.fields(kind)}
    for name in values:
        if name not in fields:
            raise ValueError(_unknown(prefix + name, list(fields), prefix.split(".")[:-1]))
    return kind(**{name: _convert(value, fields[name], prefix + name) for name, value in values.items()})


def _convert(value, expected, path: str):
    """Returns `value` as the annotated type `expected`, or explains why it cannot be."""
    if isinstance(expected, types.UnionType):  # X | None
        return None if value is None else _convert(value, typing.get_args(expected)[0], path)
    if dataclasses.is_dataclass(expected):
        return _build(expected, value, path + ".")
    if typing.get_origin(expected) is tuple and isinstance(value, (tuple, list)):
        element = typing.get_args(expected)[0]
        return tuple(_convert(item, element, path) for item in value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if expected is float and number:
        return float(value)
    if expected is int and number and value == int(value):
        return int(value)
    if expected in (bool, str) and isinstance(value, expected):
        return value
    name = getattr(expected, "__name__", str(expected)) if typing.get_origin(expected) is None else str(expected)
    raise ValueError(f"{path} must be of type {name}. Received: {path}={value!r}, of type {type(value).__name__}.")
