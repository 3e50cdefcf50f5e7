"""Creation of a recipe from the user's choices: flags, or the arguments of `keras_vit.fine_tune`."""

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from keras_vit.runs import recipe_file
from keras_vit.util import storage

if TYPE_CHECKING:
    from keras_vit.recipe import Recipe

DEFAULT = "folder"  # recipe for a data set without a recipe
# A copy from `keras_vit.recipe`, which must not be imported before the flags are checked.
OF_TIME = ("total_steps", "eval_every", "checkpoint_every", "optim.schedule.warmup_steps")
_TIME = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


@dataclasses.dataclass(frozen=True)
class Choices:
    """Choices of a user. A choice of None is left to the recipe. `epochs` sets the number of steps.

    `overrides` maps dotted fields of the recipe to values. With `as_text`, the values are texts in Python syntax.
    """

    data: str | None = None
    config: str | None = None
    model: str | None = None
    weights: str | None = None
    image_size: int | None = None
    adapt: str | None = None
    time: str | float | None = None
    epochs: float | None = None
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    as_text: bool = False

    def __post_init__(self):
        if not self.config and not self.data:
            raise ValueError(
                "Name a data set, such as folder:images, or a recipe, such as --config=digits (--list_recipes)."
            )
        if self.data and not self.config and self.data in recipe_file.names() and not os.path.exists(self.data):
            raise ValueError(f"{self.data!r} is a recipe, not a data set: --config={self.data}")
        own = {
            "data.source": self.data,
            "model.variant": self.model,
            "adapt": self.adapt,
            "model.weights": self.weights,
            "model.image_size": self.image_size,
            "time": self.time,
        }
        for field, value in own.items():
            other, same = self.overrides.get(field, value), seconds_of if field == "time" else str
            if value is not None and same(value) != same(other):
                raise ValueError(f"{field} has two values, {value} and {other}. Pass one of them.")
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise ValueError(f"The epochs must be a positive number. Received: epochs={self.epochs}.")
        time = self.time is not None or "time" in self.overrides
        if self.epochs is not None and (time or "total_steps" in self.overrides):
            other = "the time" if time else "the steps"
            raise ValueError(f"The epochs set total_steps. Pass either the epochs or {other}.")
        both = sorted(self.overrides.keys() & OF_TIME)
        if both and time:
            raise ValueError(f"The time sets {', '.join(sorted(OF_TIME))}. Pass either the time or {both[0]}.")

    def workdir(self) -> str:
        """Return the default run directory: `runs/NAME`, named after the data set or recipe."""
        named = self.data or self.config or ""
        name = os.path.basename(os.path.abspath(named.partition("#")[0].rpartition(":")[2]))
        return os.path.join("runs", name.removesuffix(".py") or "run")


def recipe_of(choices: Choices, workdir: str | None = None, count: "Callable[[Recipe], int] | None" = None) -> "Recipe":
    """Return the checked recipe for the user's choices. The choices take precedence over settings fitted to the data.

    If the `get_config` of a recipe has keyword arguments named `data`, `model`, `image_size` or `adapt`, these choices
    are passed to it. The function `fit` of a recipe file receives the recipe and the function that applies the choices.
    With `workdir`, pixels are normalized as when the weights were trained, and a resumed run keeps the settings that
    were fitted at its start. `count` returns the number of training images of a recipe, by default from its data.
    """
    from absl import logging

    from keras_vit import recipe as recipes
    from keras_vit.checkpoints.recognition import read_headers
    from keras_vit.data import open_source, preprocess, split_sizes
    from keras_vit.runs import pixel_range, run_directory
    from keras_vit.training.planning import fitting, rules

    if choices.data and (workdir or not choices.config):  # a wrong name raises an error before any download
        split_sizes(choices.data if choices.config or ":" in choices.data else f"folder:{choices.data}")
    named = recipes.named_checkpoint(choices.model, choices.image_size) if choices.model else {}
    weights = choices.weights or named.pop("weights", None)
    own_size = named.pop("image_size", None)
    given: dict[str, Any] = {name: getattr(choices, name) for name in ("data", "model", "image_size", "adapt")}
    given = {name: value for name, value in {**given, **named}.items() if value is not None}
    recipe, rest, fit = recipe_file.load(choices.config or DEFAULT, given)
    if own_size and choices.image_size is None:
        recipe = recipes.with_image_size(recipe, own_size)
    here = storage.fetched(workdir or "", small=True, must_exist=False)
    before = run_directory.recorded(here).get("recipe") if here else None
    began = recipes.from_dict(before) if before and fit is fitting.fit else None
    named_weights = (choices.model, weights, rules.DEFAULT_MODEL[1])
    pixels = [f"data.{name}" for name in ("pp_train", "pp_eval") if f"data.{name}" not in choices.overrides]
    found: dict[str, str | None] = {}  # normalization by weights
    changed: dict[str, str] = {}  # normalization by field

    def normalized(recipe: "Recipe") -> "Recipe":
        """Apply the normalization of the weights that the user named, unless the user set the preprocessing."""
        path = recipe.model.weights
        if not path or (path not in named_weights and "model.weights" not in choices.overrides):
            return recipe
        if before:  # the initial weights may no longer exist
            operations = {field: preprocess.split(before["data"][field.rpartition(".")[2]])[1] for field in pixels}
        else:
            if path not in found:
                found[path] = weights_normalization(recipe)
            operations = {field: operation for field in pixels if (operation := found[path])}
        result = pixel_range.with_normalization(recipe, operations)
        changed.update({f: operations[f] for f in pixels if recipes.get(result, f) != recipes.get(recipe, f)})
        return result

    def weights_normalization(recipe: "Recipe") -> str | None:
        if own := choices.overrides.get("data.pp_eval"):  # training pixels get the user's normalization
            return preprocess.split(own)[1]
        path = recipe.model.weights or ""
        try:
            return read_headers(recipes.weights_path(recipe) or "").normalization
        except (OSError, ImportError):
            if path in (choices.model, weights, choices.overrides.get("model.weights")):
                raise
            return None  # the rules replace default weights that are unavailable

    @functools.cache
    def images_in(source: str, split: str) -> int:
        return open_source(source, split=split).num_examples

    def change(recipe: "Recipe") -> "Recipe":
        if began:
            fields = fitting.FIELDS + (() if choices.model or weights else fitting.MODEL_FIELDS)
            recipe = recipes.replace(recipe, {field: recipes.get(began, field) for field in fields})
        if "data" in rest:
            recipe = recipes.replace(recipe, {"data.source": rest["data"]})
        if "model" in rest:
            recipe = recipes.with_weights(recipe, "none") if weights else recipe
            recipe = recipes.with_variant(recipe, rest["model"])
        if weights:
            recipe = recipes.with_weights(recipe, weights)
        if "image_size" in rest:
            recipe = recipes.with_image_size(recipe, rest["image_size"])
        if "adapt" in rest:
            recipe = recipes.replace(recipe, {"adapt": rest["adapt"]})
        if choices.time is not None:
            recipe = recipes.replace(recipe, {"time": seconds_of(choices.time)})
        for field, value in choices.overrides.items():
            text = choices.as_text
            recipe = recipes.override(recipe, field, value) if text else recipes.replace(recipe, {field: value})
        if choices.epochs is not None:
            images = count(recipe) if count else images_in(recipe.data.source, recipe.data.train_split)
            total = max(1, round(choices.epochs * images / recipe.data.batch_size))
            recipe = recipes.replace(recipe, {"total_steps": total})
        return normalized(recipe) if workdir else recipe

    recipe = recipes.check(fit(recipe, change))
    for field, operation in changed.items() if fit is not fitting.fit else ():  # `fitting.fit` logs the change itself
        logging.info(
            "%s ends in %s, as when the weights were trained. --config.%s=... replaces it.", field, operation, field
        )
    return recipe


def seconds_of(time: str | float) -> float:
    """Convert a time, given as seconds or as text, to seconds.

    Raises:
        ValueError: If the time is neither.

    Example:
    >>> seconds_of("1h30m"), seconds_of("90s"), seconds_of(90)
    (5400.0, 90.0, 90.0)
    """
    found = _TIME.fullmatch(str(time).strip())
    seconds = (
        sum(float(part or 0) * unit for part, unit in zip(found.groups(), (3_600, 60, 1), strict=True)) if found else 0
    )
    if not seconds:
        raise ValueError(f"The time must be seconds, or a text such as '20m', '1h30m' or '90s'. Received: {time!r}.")
    return seconds
