"""Files of a run directory.

DIR/config.json      recipe, classes and sizes of the data, versions, devices, and the history of all changes
DIR/data.json        the absolute path of the data, and fingerprints of its splits
DIR/metrics.jsonl    one JSON object per line, for each logged step and each evaluation
DIR/tensorboard/     the same metrics as TensorBoard events
DIR/checkpoints/     states from which the run resumes
DIR/features/        features to which the head was fitted
DIR/model.keras      the model with the weights of the best evaluation, or their moving average if the recipe averages
                     weights; with the last weights if nothing was evaluated during the training
DIR/adapter/         LoRA factors and head in peft's format, for a run with adapt=lora(...)
DIR/restarts.json    numbers of the starts, if a supervisor sets them (`runs/restarts.py`)
DIR/starts/          the same for each pod of a Kubernetes Job
DIR/report.png       learning curves, and some test images with their predictions
"""

import dataclasses
import glob
import json
import os
import platform
import sys
from typing import TYPE_CHECKING, Any

from absl import logging

from keras_vit import zoo
from keras_vit.runs.errors import StorageError
from keras_vit.util import file_io
from keras_vit.util.progress import Progress
from keras_vit.version import __version__

if TYPE_CHECKING:
    import keras

    from keras_vit import recipe as recipes
# Functions that need more than the records import the modules that need Keras or TensorFlow.

CONFIG = "config.json"
METRICS = "metrics.jsonl"
MODEL = "model.keras"
ADAPTER = "adapter"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
REPORT = "report.png"
_PACKAGES = ("keras", "tensorflow", "jax", "numpy")


def read_config(directory: str) -> dict[str, Any]:
    """Return the content of `config.json` in a run directory."""
    path = os.path.join(directory, CONFIG)
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"Expected {CONFIG}, which contains the preprocessing of the model, in {directory!r}. The file does not "
            "exist: pass the run directory of `keras-vit train`."
        )
    config = file_io.read_json(path)
    for name, kind in (("recipe", dict), ("data", dict), ("preprocess", str)):
        if not isinstance(config.get(name), kind):
            raise ValueError(f"{path} must contain {name!r}, a {kind.__name__}. Received: {config.get(name)!r}.")
    if not isinstance(config["recipe"].get("total_steps"), int):
        raise ValueError(f"{path} must contain a recipe with the field 'total_steps'.")
    names = config["data"].get("class_names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path} must contain data.class_names, a list of names. Received: {names!r}.")
    return config


def write_config(
    directory: str,
    recipe: "recipes.Recipe",
    data: dict[str, Any],
    step: int | None = None,
    resolved: "recipes.Recipe | None" = None,
    devices: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `config.json`: everything needed to repeat the run and to use its model.

    The record of existing weights is never lost. An existing record that differs from the new record becomes an entry
    of `"history"`, with the step at which it ends. Changes of devices and versions are logged.

    `resolved` is the recipe with the architecture of its initial weights, so that the run resumes without these
    weights. `step` is None for a new run. `devices` is the result of `Backend.record`.
    """
    from keras_vit import recipe as recipes

    config: dict[str, Any] = {
        "recipe": recipes.to_dict(recipe),
        "data": data,
        "preprocess": recipe.data.pp_eval,
        "output": recipe.task.output(recipe),
        "metrics": list(map(dataclasses.asdict, recipe.task.metrics)),
        "versions": _versions(),
    }
    if recipe.model.weights and (origin := _origin(recipe, directory)):
        config["weights"] = origin
    if resolved and resolved.model != recipe.model:
        config["architecture"] = {"variant": resolved.model.variant, "arguments": resolved.model.arguments}
    if devices:
        config["devices"] = devices
    path = os.path.join(directory, CONFIG)
    if before := recorded(directory):
        parts = [part for part in ("recipe", "data", "versions", "devices") if part in config]
        same = {**before, "recipe": as_json(recipe_of(before))}
        if all(same.get(part) == as_json(config[part]) for part in parts):
            return before
        entry: dict[str, Any] = {"until_step": step, **{part: before[part] for part in parts if part in before}}
        config["history"] = [*before.get("history", []), entry]
        if step:  # otherwise no step was trained with the earlier record, such as before the steps were planned
            logging.info("The history in %s keeps the earlier record.", path)
        changed = []
        for part in ("versions", "devices"):
            old, new = before.get(part, {}), config.get(part, {})
            changed += [f"{part}.{key}: {old[key]} -> {new[key]}" for key in old if new.get(key, old[key]) != old[key]]
        if changed:
            logging.warning("Results may differ in the last bits. Since the last start: %s", "; ".join(changed))
    file_io.write_json(path, config)
    return config


def _origin(recipe: "recipes.Recipe", directory: str) -> str:
    """Return the name of a run's initial weights, pinned to a commit of the hub, or an empty string for a path."""
    if before := recorded(directory):
        return before.get("weights", "")
    named = zoo.parse_weights_name(recipe.model.weights or "", recipe.model.variant)
    return named.pinned() if named.location else ""


def read_metrics(directory: str) -> list[dict[str, Any]]:
    """Return the intact lines of a run's `metrics.jsonl`; an empty list if the file does not exist."""
    path = os.path.join(directory, METRICS)
    lines, damaged = file_io.read_json_lines(path) if os.path.exists(path) else ([], 0)
    whole = [line for line in lines if isinstance(line.get("step"), int)]
    if damaged or len(whole) < len(lines):
        logging.warning("%s has %d damaged lines, which are ignored.", path, damaged + len(lines) - len(whole))
    return whole


def last_evaluation(directory: str, step: int | None = None) -> dict[str, Any]:
    """Return the metrics of the last evaluation, or of the evaluation at `step`; empty without such an evaluation.

    The last evaluation of a finished run is of the weights in `model.keras`, and contains the metrics of the test split
    such as `"test_accuracy"`, if the recipe has one.
    """
    lines = [line for line in read_metrics(directory)[::-1] if "eval_loss" in line or "test_loss" in line]
    lines = [line for line in lines if line["step"] == (lines[0]["step"] if step is None else step)]
    found = next((line for line in lines if "eval_loss" in line), {})
    return {**next((line for line in lines if "test_loss" in line), {}), **found}


def as_json(value: Any) -> Any:
    """Return a value as JSON would read it back, with lists instead of tuples."""
    return json.loads(json.dumps(value))


def recipe_of(config: dict[str, Any]) -> dict[str, Any]:
    """Convert the recipe of a `config.json` to the current format. A recipe with unknown fields stays unchanged."""
    from keras_vit import recipe as recipes

    try:
        return recipes.to_dict(recipes.from_dict(config["recipe"]))
    except ValueError:
        return config["recipe"]


def recorded(directory: str) -> dict[str, Any]:
    """Return the content of `config.json` if the run has weights, otherwise an empty dictionary."""
    manifests = os.path.join(glob.escape(directory), CHECKPOINTS, "**", "*.json")
    has_weights = is_finished(directory) or glob.glob(manifests, recursive=True)
    return read_config(directory) if has_weights and os.path.exists(os.path.join(directory, CONFIG)) else {}


def is_run(path: str) -> bool:
    """Return whether a path is a run directory, finished or not, or the `.keras` file of a run."""
    if path.endswith(".keras"):
        return os.path.isfile(path) and os.path.isfile(os.path.join(os.path.dirname(path), CONFIG))
    return any(os.path.exists(os.path.join(path, name)) for name in (MODEL, METRICS, CHECKPOINTS))


def is_finished(directory: str) -> bool:
    """Return whether a run has written its model."""
    return os.path.exists(os.path.join(directory, MODEL))


def save_model(model: "keras.Model", directory: str, base: str | None = None) -> str:
    """Write the final `model.keras` and return its path. For a model with LoRA, also write its adapter for `base`.

    Each file is replaced atomically. If writing fails, the older file stays.
    """
    from keras_vit.adaptation.adapt import lora_layers

    path = os.path.join(directory, MODEL)
    try:
        with Progress(f"Writing {MODEL}"), file_io.atomic_file(path) as temporary:
            model.save(temporary)
        if lora_layers(model):
            _save_adapter(model, os.path.join(directory, ADAPTER), base)
    except OSError as error:
        raise StorageError(f"Could not write {path}: {error}. Free some space, then start again.") from error
    return path


def _save_adapter(model: "keras.Model", path: str, base: str | None) -> None:
    from keras_vit.adaptation.adapter_files import save_adapter

    try:
        save_adapter(model, path, base=base)
    except ValueError as error:  # peft's format does not support the model
        logging.warning("No adapter is written to %s: %s", path, error)


def _versions() -> dict[str, str]:
    """Return the versions of Python and of the imported packages."""
    import keras

    used = {name: sys.modules[name].__version__ for name in _PACKAGES if name in sys.modules}
    own = {"keras_vit": __version__, "python": platform.python_version(), "keras_backend": keras.backend.backend()}
    return {**own, **used}
