"""What a run leaves behind, written and read in one place.

DIR/config.json      the recipe, the data's classes and sizes, the preprocessing, the versions
DIR/metrics.jsonl    a JSON object per line: one per logged step and per evaluation
DIR/tensorboard/     the same as TensorBoard events
DIR/checkpoints/     what a stopped run resumes from
DIR/model.keras      the final weights (their moving average where the recipe keeps one)
DIR/report.png       curves, and some test images with their predictions
"""

import importlib.metadata
import json
import os
import platform
from typing import NamedTuple

import keras

from keras_vit import recipe as recipes

CONFIG = "config.json"
METRICS = "metrics.jsonl"
MODEL = "model.keras"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
REPORT = "report.png"


class Run(NamedTuple):
    """A finished run.

    Attributes:
        model: the trained network.
        config: everything in `config.json`.
        class_names: one name a class, in the order of the logits.
        preprocess: what turns an encoded picture into the model's input.
        output: what turns logits into probabilities, `"softmax"` or `"sigmoid"`.
        path: the directory.
    """

    model: keras.Model
    config: dict
    class_names: tuple[str, ...]
    preprocess: str
    output: str
    path: str


def load_run(path: str) -> Run:
    """Opens a finished run: its model and everything needed to use it.

    Args:
        path: a run directory, or a `.keras` file in one.

    Returns:
        The run.

    Raises:
        FileNotFoundError: if the model or its `config.json` is missing.
        ValueError: if `config.json` is not one of a run.
    """
    directory, model_file = _locate(path)
    config = read_config(directory)
    return Run(
        model=keras.models.load_model(model_file, compile=False),
        config=config,
        class_names=tuple(config["data"]["class_names"]),
        preprocess=config["preprocess"],
        output=config["output"],
        path=directory,
    )


def read_config(directory: str) -> dict:
    """Returns what `config.json` of a run directory holds.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is not JSON, or not one of a run.
    """
    path = os.path.join(directory, CONFIG)
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"Expected {CONFIG}, which says how to prepare images for the model, in {directory!r}. There is none: "
            "give the directory of a run of `python -m train.main`."
        )
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    missing = {"recipe", "data", "preprocess", "output"} - set(config)
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}: it was not written by `python -m train.main`.")
    return config


def write_config(directory: str, recipe: recipes.Recipe, data: dict) -> dict:
    """Writes `config.json`: everything needed to repeat the run and to use its model.

    Args:
        directory: of the run.
        recipe: that is trained.
        data: `name`, `class_names`, `num_classes`, `num_train`, `num_eval`, `multi_label`.

    Returns:
        What was written.
    """
    config = {
        "recipe": recipes.to_dict(recipe),
        "data": data,
        "preprocess": recipe.data.pp_eval,
        "output": recipe.loss,
        "versions": _versions(),
    }
    write_atomically(os.path.join(directory, CONFIG), json.dumps(config, indent=2) + "\n")
    return config


def write_atomically(path: str, text: str) -> None:
    """Writes a text file so that `path` holds either all of it or what it held before."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save_model(model: keras.Model, directory: str) -> str:
    """Writes the final `model.keras` in one piece and returns its path."""
    path = os.path.join(directory, MODEL)
    temporary = os.path.join(directory, f".{os.getpid()}.tmp.keras")  # Keras insists on the ending
    try:
        model.save(temporary)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
    return path


def _locate(path: str) -> tuple[str, str]:
    """Returns the run directory and the model file that `path` means."""
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


def _versions() -> dict:
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
