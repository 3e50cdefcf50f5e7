"""Files of a run, written and read in one place.

DIR/config.json      the recipe, the data's classes and sizes, the preprocessing, the versions; what changed on the way
DIR/metrics.jsonl    a JSON object per line: one per logged step and per evaluation
DIR/tensorboard/     the same as TensorBoard events, with the recipe and some training images
DIR/checkpoints/     states to resume from
DIR/model.keras      the final weights (their moving average where the recipe keeps one)
DIR/report.png       curves, and some test images with their predictions
"""

import glob
import importlib.metadata
import os
import platform
import zipfile
import zlib
from typing import Any, NamedTuple

import keras
from absl import logging

from keras_vit import _io
from keras_vit import recipe as recipes
from keras_vit.training.errors import StorageError

CONFIG = "config.json"
METRICS = "metrics.jsonl"
MODEL = "model.keras"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
REPORT = "report.png"


class Run(NamedTuple):
    """A finished run.

    Attributes:
        model: The trained model.
        config: Content of `config.json`.
        class_names: Names of the classes, in the order of the logits.
        preprocess: Preprocessing from an encoded image to the model's input.
        output: Function from logits to probabilities, `"softmax"` or `"sigmoid"`.
        path: The directory.

    Example:
    >>> run = load_run("runs/digits")
    >>> run.preprocess, run.output, run.class_names[:2]
    ('value_range(-1, 1)', 'softmax', ('0', '1'))
    """

    model: keras.Model
    config: dict[str, Any]
    class_names: tuple[str, ...]
    preprocess: str
    output: str
    path: str


def load_run(path: str) -> Run:
    """Open a finished run: its model and everything needed to use it.

    Args:
        path: A run directory, or a `.keras` file in one.

    Raises:
        FileNotFoundError: If the model or its `config.json` is missing.
        ValueError: If the model or `config.json` is damaged, or not one of a run.

    Example:
    >>> run = load_run("runs/digits")
    >>> run.model.output_shape, run.config["recipe"]["total_steps"]
    ((None, 10), 4)
    """
    directory, model_file = _locate(path)
    config = read_config(directory)
    return Run(
        model=_load_model(model_file),
        config=config,
        class_names=tuple(config["data"]["class_names"]),
        preprocess=config["preprocess"],
        output=config["output"],
        path=directory,
    )


def read_config(directory: str) -> dict[str, Any]:
    """Return the content of `config.json` in a run directory.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is not JSON, or not one of a run.
    """
    path = os.path.join(directory, CONFIG)
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"Expected {CONFIG}, which says how to prepare images for the model, in {directory!r}. There is none: "
            "give the directory of a run of `python -m train.main`."
        )
    config = _io.read_json(path)
    for name, kind in (("recipe", dict), ("data", dict), ("preprocess", str), ("output", str)):
        if not isinstance(config.get(name), kind):
            raise ValueError(
                f"{path} must hold {name!r}, a {kind.__name__}. Received: {config.get(name)!r}. It was not written by "
                "`python -m train.main`."
            )
    names = config["data"].get("class_names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path} must hold data.class_names, a list of names. Received: {names!r}.")
    return config


def write_config(
    directory: str,
    recipe: recipes.Recipe,
    data: dict[str, Any],
    step: int | None = None,
    resolved: recipes.Recipe | None = None,
) -> dict[str, Any]:
    """Write `config.json`: everything needed to repeat the run and to use its model.

    The record of existing weights is never lost: if it differs, it becomes an entry of `"history"`, with the
    step at which it ends.

    Args:
        directory: The run directory.
        recipe: Recipe that is trained.
        data: `name`, `class_names`, `num_classes`, `num_train`, `num_eval`, `multi_label`.
        step: Step at which the run resumes; None where it begins.
        resolved: The recipe with the architecture of its checkpoint; see `recipe.resolve`. It is recorded, so that the
            run resumes without the checkpoint.

    Returns:
        The content.
    """
    config: dict[str, Any] = {
        "recipe": recipes.to_dict(recipe),
        "data": data,
        "preprocess": recipe.data.pp_eval,
        "output": recipe.loss,
        "versions": _versions(),
    }
    if resolved is not None and resolved.model != recipe.model:
        config["architecture"] = {"variant": resolved.model.variant, "arguments": resolved.model.arguments}
    path = os.path.join(directory, CONFIG)
    if os.path.exists(path) and has_weights(directory):
        before = read_config(directory)
        parts = ("recipe", "data", "versions")
        if all(_as_json(before.get(part)) == _as_json(config[part]) for part in parts):
            return before
        entry = {"until_step": step, **{part: before.get(part) for part in parts}}
        config["history"] = [*before.get("history", []), entry]
        logging.info("The earlier record of %s is kept in its history.", path)
    _io.write_json(path, config)
    return config


def recorded_architecture(directory: str) -> dict[str, Any] | None:
    """Return the architecture that a run took from a checkpoint; None if it did not, or has no weights yet."""
    if not has_weights(directory) or not os.path.exists(os.path.join(directory, CONFIG)):
        return None
    return read_config(directory).get("architecture")


def has_weights(directory: str) -> bool:
    """Return whether a run directory holds a checkpoint or a model."""
    manifests = os.path.join(glob.escape(directory), CHECKPOINTS, "*.json")
    return os.path.exists(os.path.join(directory, MODEL)) or bool(glob.glob(manifests))


def save_model(model: keras.Model, directory: str) -> str:
    """Write the final `model.keras` in one step and return its path.

    Raises:
        StorageError: If it cannot be written. An older one stays.
    """
    path = os.path.join(directory, MODEL)
    try:
        with _io.atomic_file(path) as temporary:
            model.save(temporary)
    except OSError as error:
        raise StorageError(f"Could not write {path}: {error}. Free some space, then start again.") from error
    return path


def _load_model(path: str) -> keras.Model:
    """Load a `.keras` file; Keras itself reports a damaged one as missing."""
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is cut off, or not a .keras file")
        return keras.models.load_model(path, compile=False)
    except (ValueError, TypeError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"The model in {path} cannot be loaded: {error}") from error


def _locate(path: str) -> tuple[str, str]:
    """Return the run directory and the model file that `path` means."""
    path = os.fspath(path)
    if path.endswith(".keras"):
        directory, model_file = os.path.dirname(path) or ".", path
    else:
        directory, model_file = path, os.path.join(path, MODEL)
    if not os.path.exists(model_file):
        what = f"{MODEL} in the directory {directory!r}" if model_file != path else f"the file {path!r}"
        raise FileNotFoundError(
            f"Expected {what}; there is none. A run writes it when training ends: to finish one that was "
            "interrupted, start `python -m train.main` again with the same --workdir."
        )
    return directory, model_file


def _as_json(value: Any) -> Any:
    """Return a value as it is read back from JSON, with lists for tuples."""
    if isinstance(value, dict):
        return {name: _as_json(item) for name, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "keras_backend": keras.backend.backend()}
    for name in (
        "keras-vision-transformers",
        "keras",
        "tensorflow",
        "tensorflow-cpu",
        "tensorflow-tpu",
        "jax",
        "numpy",
    ):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
