"""Comparison of a recipe with the recipe that a run directory was created with."""

import os
from typing import TYPE_CHECKING, Any

from absl import logging

from keras_vit.runs import run_directory
from keras_vit.util import source_specs

if TYPE_CHECKING:
    from keras_vit import recipe as recipes

# Fields that may change when a run is resumed: they affect the reports and the division of the work, not the trained
# weights. `total_steps` may also increase.
HARMLESS = (
    "steps_per_loop",
    "log_every",
    "eval_every",
    "patience",
    "checkpoint_every",
    "keep_checkpoints",
    "head_images",
    "evaluators",
    "jit",
    "data.eval_batch_size",
    "data.on_bad_image",
    "data.test_split",
    "optim.accumulation_steps",
    "model.remat",
    "model.attention_chunk_size",
    "data set.name",
    "data set.num_eval",
)


def check(
    directory: str, recipe: "recipes.Recipe", data: dict, change_recipe: bool = False, files: dict | None = None
) -> None:
    """Raise a ValueError if a run would be resumed with another recipe or with other data.

    A directory without weights fits any recipe. `files` is the result of `data_record.describe`; None skips the
    comparison of the data's fingerprints.
    """
    from keras_vit.data import fingerprint
    from keras_vit.runs import data_record

    config = run_directory.recorded(directory)
    if not config:
        return
    path, found = os.path.join(directory, run_directory.CONFIG), differences(config, recipe, data)
    before, now = (record.get("splits", {}) for record in (data_record.read(directory), files or {}))
    changed = fingerprint.changes(before, now)
    if before and now and not changed and source_specs.read_alike(*found.get("data.source", ("", ""))):
        found.pop("data.source", None)  # the same data at another path
    listed = [f"{field}: {_short(before)} -> {_short(after)}" for field, (before, after) in found.items()]
    serious = [
        field
        for field, (before, after) in found.items()
        if field not in HARMLESS and not (field == "total_steps" and after > before)
    ]
    if (changed or serious) and not change_recipe:
        what = f"The data of {directory} have changed" if changed else f"{directory} was trained with another recipe"
        raise ValueError(
            f"{what}. Before -> now: {'; '.join([*changed, *listed])}. Resume with the data and the recipe in {path}, "
            "or pass another --workdir for a new run. --change_recipe continues from the last checkpoint with the new "
            "recipe and data, and keeps the record of the earlier recipe."
        )
    for change in (*changed, *listed):
        logging.warning("Changed since the last start: %s", change)


def differences(config: dict, recipe: "recipes.Recipe", data: dict) -> dict[str, tuple]:
    """Return the differing fields as `{field: (before, after)}`. `config` is the content of `config.json`."""
    from keras_vit import recipe as recipes

    old, new = fields(config), {**flatten(recipes.to_dict(recipe)), **flatten(data, "data set.")}
    both = {field: (old.get(field), new.get(field)) for field in {**new, **old}}
    return {field: (before, after) for field, (before, after) in both.items() if before != after}


def fields(config: dict, converted: bool = True) -> dict:
    """Return the recipe and the data of a `config.json` as one dictionary with dotted names.

    `converted` means that the recipe is converted to the current format, which imports Keras.
    """
    recipe = run_directory.recipe_of(config) if converted else config["recipe"]
    return {**flatten(recipe), **flatten(config["data"], "data set.")}


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def flatten(values: dict, prefix: str = "") -> dict:
    """Flatten nested dictionaries to one dictionary with dotted names. Values are converted as in JSON."""
    flat: dict[str, Any] = {}
    for name, value in run_directory.as_json(values).items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
