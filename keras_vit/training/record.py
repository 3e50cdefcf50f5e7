"""Comparison of a recipe with the one that a run directory was made with."""

import json
import os
from typing import Any

from absl import logging

from keras_vit import recipe as recipes
from keras_vit.training import run_directory

# Fields that may change while a run is interrupted: they decide what is reported and how the work is divided, not what
# is learned. `total_steps` may grow.
HARMLESS = (
    "steps_per_loop",
    "log_every",
    "eval_every",
    "checkpoint_every",
    "keep_checkpoints",
    "evaluators",
    "jit",
    "data.eval_batch_size",
    "data.on_bad_image",
    "optim.accumulation_steps",
    "model.remat",
    "model.attention_chunk_size",
    "data set.name",
    "data set.num_eval",
)


def check(directory: str, recipe: recipes.Recipe, data: dict, change_recipe: bool = False) -> None:
    """Refuse to resume a run with another recipe or other data than it was made with.

    Args:
        directory: The run directory. One without weights fits any recipe.
        recipe: Recipe that is to be trained.
        data: Description of the data, as in `config.json`.
        change_recipe: Whether to resume in spite of differences.

    Raises:
        ValueError: If fields differ that decide what is learned; names them.
    """
    path = os.path.join(directory, run_directory.CONFIG)
    if not os.path.exists(path) or not run_directory.has_weights(directory):
        return
    found = differences(run_directory.read_config(directory), recipe, data)
    if not found:
        return
    listed = "; ".join(f"{field}: {_short(before)} -> {_short(after)}" for field, (before, after) in found.items())
    serious = {field: values for field, values in found.items() if not _is_harmless(field, *values)}
    if serious and not change_recipe:
        raise ValueError(
            f"{directory} was trained with another recipe. There -> here: {listed}. Give another --workdir for a new "
            f"run, or the recipe in {path} to resume this one, or --change_recipe to continue from its last checkpoint "
            "with this recipe; the record of the earlier one is kept."
        )
    logging.info("The recipe has changed since the last start: %s", listed)


def differences(config: dict, recipe: recipes.Recipe, data: dict) -> dict[str, tuple]:
    """Return the fields that differ as `{field: (before, after)}`.

    Args:
        config: Content of the run's `config.json`.
        recipe: Recipe to compare with.
        data: Description of the data to compare with.
    """
    old = fields(config)
    new = {**flatten(recipes.to_dict(recipe)), **flatten(data, "data set.")}
    return {
        field: (old.get(field), new.get(field))
        for field in dict.fromkeys([*new, *old])
        if old.get(field) != new.get(field)
    }


def fields(config: dict) -> dict:
    """Return the recipe and the data of a `config.json` as one dictionary with dotted names.

    Args:
        config: Content of `config.json`.
    """
    try:
        recipe = recipes.to_dict(recipes.from_dict(config["recipe"]))
    except ValueError:  # has fields of another version
        recipe = config["recipe"]
    return {**flatten(recipe), **flatten(config["data"], "data set.")}


def _is_harmless(field: str, before, after) -> bool:
    if field == "total_steps":
        return after > before
    if field == "optim.weight_decay_mask":
        return {before, after} == {None, "kernel$"}  # two spellings of one set of weights
    return field in HARMLESS


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def flatten(values: dict, prefix: str = "") -> dict:
    """Return nested dictionaries as one, with dotted names and values as JSON has them."""
    flat: dict[str, Any] = {}
    for name, value in json.loads(json.dumps(values)).items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
