"""Conversion of recipes from and to dictionaries, and changes from the command line, with all types and ranges checked.

The conversion does not use a library, so that its messages name a field as users write it, and suggest similar names.
"""

import ast
import copy
import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from keras_vit import adaptation, models
from keras_vit.models import BiTConfig, ViTConfig
from keras_vit.recipe.fields import ARGUMENT_FIELDS, CHOICES, MINIMUM, Recipe, TaskField
from keras_vit.recipe.model import DERIVED, argument_names
from keras_vit.tasks import MaskedTask, Task
from keras_vit.util import checks, foreign_names

_ARGUMENTS = "model.arguments"


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as plain dictionaries that can be written as JSON."""
    return {**dataclasses.asdict(recipe), "task": str(recipe.task)}


def from_dict(values: dict[str, Any]) -> Recipe:
    """Build a recipe from plain dictionaries, such as the content of `config.json`, and check it."""
    optim = values.get("optim")
    if isinstance(optim, dict) and optim.get("frozen") == "":  # the former field `frozen` is now `adapt`
        values = {**values, "optim": {name: value for name, value in optim.items() if name != "frozen"}}
    return check(_build(Recipe, values, prefix=""))


def check(recipe: Recipe) -> Recipe:
    """Check the type and range of every field, and return the recipe.

    Raises:
        ValueError: If a field is wrong. The message names the field.

    Example:
    >>> check(Recipe(loss="hinge"))
    Traceback (most recent call last):
    ValueError: loss must be one of 'softmax', 'sigmoid'. Received: loss='hinge'
    """
    recipe = _build(Recipe, {**dataclasses.asdict(recipe), "task": recipe.task}, prefix="")
    for path, allowed in CHOICES.items():
        value = get(recipe, path)
        if value not in allowed:
            raise ValueError(f"{path} must be one of {', '.join(map(repr, allowed))}. Received: {path}={value!r}")
    fewest_steps = 0 if recipe.head_images else 1  # a fitted head needs no steps
    for path, minimum in {**MINIMUM, "total_steps": fewest_steps}.items():
        value = get(recipe, path)
        if value is not None and value < minimum:
            raise ValueError(f"{path} must be at least {minimum}. Received: {path}={value}")
    batch_size, micro_batches = recipe.data.batch_size, recipe.optim.accumulation_steps
    if batch_size % micro_batches:
        raise ValueError(
            f"data.batch_size must be a multiple of optim.accumulation_steps={micro_batches}. Received: "
            f"data.batch_size={batch_size}. The nearest valid size is {nearest_multiple(batch_size, micro_batches)}."
        )
    _check_model(recipe)
    adaptation.parse_adapt(recipe.adapt)
    recipe.task.check(recipe)
    return recipe


def get(recipe: Recipe, path: str) -> Any:
    """Return the field at a dotted path. A task is returned as text, and an unset argument of the model as None."""
    value: Any = recipe
    parents: list[str] = []
    for name in path.split("."):
        if ".".join(parents) == _ARGUMENTS:
            _check_argument(recipe.model.variant, name)
            return recipe.model.arguments.get(name)
        names = [] if isinstance(value, Task) else list(_annotations(type(value)))
        if name not in names:
            raise ValueError(_unknown(".".join([*parents, name]), names))
        value = getattr(value, name)
        parents.append(name)
    return str(value) if isinstance(value, Task) else value


def override(recipe: Recipe, path: str, text: str) -> Recipe:
    """Return a recipe with the field at a dotted path set to a value from the command line.

    `text` is a Python literal, or a string without quotes. For a field that can be None, an empty text or `None` means
    None.
    """
    parent, _, name = path.rpartition(".")
    kind = _annotations(type(get(recipe, parent) if parent else recipe)).get(name, Any)
    return replace(recipe, {path: _parse(text, kind)})


def replace(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return a recipe with new values for some fields, which are given by their dotted paths.

    Raises:
        ValueError: If a field does not exist, or a value has the wrong type.

    Example:
    >>> replace(Recipe(), {"seed": 1, "optim.learning_rate": 1e-2}).optim.learning_rate
    0.01
    """
    recipe = copy.deepcopy(recipe)
    for path, value in values.items():  # in order, because the variant determines the names of the arguments
        get(recipe, path)  # raises an error for an unknown name
        parent, _, name = path.rpartition(".")
        group = get(recipe, parent) if parent else recipe
        if isinstance(group, dict):
            group |= _convert({name: value}, dict[str, Any], parent)
            continue
        kind = _annotations(type(group))[name]
        if dataclasses.is_dataclass(kind):
            names = ", ".join(f"{path}.{field}" for field in _annotations(kind))
            raise ValueError(f"{path} is a group of fields. Set one of them: {names}.")
        setattr(group, name, _convert(value, kind, path))
    return recipe


def nearest_multiple(number: int, divisor: int) -> int:
    """Return the positive multiple of `divisor` nearest to `number`."""
    return max(divisor, divisor * round(number / divisor))


def _check_model(recipe: Recipe) -> None:
    """Check the variant and the arguments of its model."""
    variant = recipe.model.variant
    if variant not in models.list_models():
        hint = checks.nearest(variant, models.list_models())
        raise ValueError(f"model.variant must be one of keras_vit.list_models(). Received: {variant!r}.{hint}")
    for name in recipe.model.arguments:
        _check_argument(variant, name)
    if isinstance(recipe.task, MaskedTask):
        recipe.task.model_config(recipe)
        return
    if recipe.model.weights:  # its architecture may differ from the variant
        return
    config, sizes = (ViTConfig, models.VIT[variant]) if variant in models.VIT else (BiTConfig, models.BIT[variant])
    given = {name: value for name, value in recipe.model.constructor_arguments().items() if name in config.names()}
    config(**{**dataclasses.asdict(sizes), **given})


def _check_argument(variant: str, name: str) -> None:
    names = argument_names(variant)
    if name in names:
        return
    if name in ARGUMENT_FIELDS:
        raise ValueError(f"{name} is a separate field: set model.{name} instead of {_ARGUMENTS}.{name}.")
    if name in DERIVED:
        raise ValueError(f"{_ARGUMENTS}.{name} cannot be set: it follows from the data and the other fields.")
    raise ValueError(
        f"The model {variant} has no argument {name!r}, received in {_ARGUMENTS}.{checks.nearest(name, names)} Known "
        f"arguments: {', '.join(names)}."
    )


def _unknown(path: str, names: list[str]) -> str:
    parent, _, name = path.rpartition(".")
    if not names:
        return f"The recipe has no field {path}. {parent} has no fields of its own."
    known = [f"{parent}.{field}" if parent else field for field in names]
    paths = {**foreign_names.BY_LAST_COMPONENT, **dict(zip(names, known, strict=True))}
    fields, advice = foreign_names.fields_like(name)
    fields = fields or [f"{_ARGUMENTS}.{own}" for own in argument_names("") if own == name]
    fields = fields or [paths[own] for own in checks.closest(name, paths, 0.7)]
    hint = f" {advice}" if advice else checks.did_you_mean(fields)
    return f"The recipe has no field {path}.{hint} Known fields: {', '.join(known)}."


def _annotations(kind: Any) -> dict[str, Any]:
    return {field.name: field.type for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else {}


def _build(kind: Any, values: Any, prefix: str) -> Any:
    """Build the dataclass `kind` from a dictionary, recursively, and check each type."""
    if not isinstance(values, dict):
        raise ValueError(f"{prefix.rstrip('.') or 'A recipe'} must be a dictionary of fields. Received: {values!r}")
    fields = _annotations(kind)
    for name in values:
        if name not in fields:
            raise ValueError(_unknown(f"{prefix}{name}", list(fields)))
    return kind(**{name: _convert(value, fields[name], f"{prefix}{name}") for name, value in values.items()})


def _convert(value: Any, expected: Any, path: str) -> Any:
    """Return `value` as the annotated type `expected`."""
    if isinstance(expected, types.UnionType):  # X | None
        return None if value is None else _convert(value, typing.get_args(expected)[0], path)
    if expected is TaskField:
        return value  # parsed by the field
    if dataclasses.is_dataclass(expected):
        return _build(expected, value, f"{path}.")
    if typing.get_origin(expected) is dict and isinstance(value, dict):
        return {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
    if typing.get_origin(expected) is tuple and isinstance(value, (tuple, list)):
        element = typing.get_args(expected)[0]
        return tuple(_convert(item, element, path) for item in value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if expected is float and number:
        return float(value)
    if expected is int and number and (isinstance(value, int) or value.is_integer()):
        return int(value)
    if expected in (bool, str) and isinstance(value, expected):
        return value
    name = getattr(expected, "__name__", str(expected)) if typing.get_origin(expected) is None else str(expected)
    raise ValueError(f"{path} must be of type {name}. Received: {path}={value!r}, of type {type(value).__name__}.")


def _parse(text: str, expected: Any) -> Any:
    """Parse a text from the command line as a value of type `expected`."""
    if isinstance(expected, types.UnionType):  # X | None
        return None if text in ("", "None") else _parse(text, typing.get_args(expected)[0])
    if expected in (str, TaskField):
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if expected is bool and text in ("0", "1"):
        return text == "1"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = text
    if typing.get_origin(expected) is tuple and not isinstance(value, (tuple, list)):
        value = (value,) if text else ()
    return value
