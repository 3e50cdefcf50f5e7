"""A run with its trained model: `load_run`."""

import os
from typing import Any, NamedTuple

import keras
from absl import logging

from keras_vit import recipe as recipes
from keras_vit.checkpoints.keras_files import load_keras_file
from keras_vit.models.variables import weights
from keras_vit.runs import checkpoints, chosen_checkpoint, pixel_range
from keras_vit.runs.run_directory import CHECKPOINTS, CONFIG, MODEL, last_evaluation, read_config
from keras_vit.util import file_io, storage


class Run(NamedTuple):
    """A run with its trained model.

    Attributes:
        model: The model.
        config: Content of `config.json`.
        class_names: Names of the classes, in the order of the logits.
        preprocess: Preprocessing from an encoded image to the model's input.
        output: Function from logits to probabilities, `"softmax"` or `"sigmoid"`.
        path: The run directory.
        step: Step of the checkpoint of the weights; None for the weights in `model.keras`.
        sha256: SHA-256 of the model file or, for a checkpoint, of its manifest and `config.json`.

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
    step: int | None = None
    sha256: str = ""

    @property
    def results(self) -> dict[str, Any]:
        """Metrics of the weights in `model.keras` by name, such as `"eval_accuracy"`; empty without an evaluation."""
        return last_evaluation(self.path)


def load_run(path: str, checkpoint: str | int | None = None) -> Run:
    """Open a run: its model and everything needed to use it.

    Args:
        path: A run directory, a `.keras` file in a run directory, or the address of either in a bucket.
        checkpoint: Weights of the model. By default those in `model.keras`, which an unfinished run does not have: the
            weights of the best evaluation, or the last weights without evaluations during the training. `"best"` and
            `"last"` open the best and the newest checkpoint; the step of a checkpoint opens that checkpoint.

    Raises:
        FileNotFoundError: If the model or its `config.json` is missing.
        ValueError: If the model or `config.json` is damaged or does not belong to a run, or if the checkpoint does not
            exist.
        CheckpointMismatch: If the checkpoint was not written with the recipe of the run.

    Example:
    >>> run = load_run("runs/digits")
    >>> run.model.output_shape, run.config["recipe"]["total_steps"]
    ((None, 10), 4)
    """
    return open_run(storage.fetched(path, checkpoint), checkpoint)


def open_run(path: str, checkpoint: str | int | None = None) -> Run:
    """Open a run at a local path. Arguments and errors are the same as for `load_run`."""
    directory = (os.path.dirname(path) or ".") if path.endswith(".keras") else path
    model_file = path if path.endswith(".keras") else os.path.join(path, MODEL)
    if checkpoint is None:
        _check_finished(directory, model_file)
    config = read_config(directory)
    if checkpoint is None:
        step, sha256, model = None, file_io.sha256(model_file), load_keras_file(model_file)
    else:
        model, step, sha256 = _restore(config, directory, str(checkpoint))
    names = tuple(config["data"]["class_names"])
    return Run(model, config, names, config["preprocess"], config["output"], directory, step, sha256)


def _restore(config: dict[str, Any], directory: str, checkpoint: str) -> tuple[keras.Model, int, str]:
    """Build the model of a run with the weights of a checkpoint.

    Returns the model, its step, and the SHA-256 of the checkpoint and `config.json`.
    """
    chosen = chosen_checkpoint.choose(os.path.join(directory, CHECKPOINTS), checkpoint)
    sha256 = file_io.joint_sha256([checkpoints.manifest_of(chosen.path), os.path.join(directory, CONFIG)])
    recipe = recipes.resolve(recipes.from_dict(config["recipe"]), config.get("architecture"))
    names, stated = config["data"]["class_names"], config["data"].get("values")
    outputs = len(stated["names"]) if stated else len(names)
    model = recipes.build_model(recipe, outputs, config["data"].get("channels", 3))
    variables = {variable.path: variable for variable in weights(model)}
    values = chosen.weights({path: tuple(variable.shape) for path, variable in variables.items()})
    for path, variable in variables.items():
        variable.assign(values[path])
    pixel_range.set_normalization(model, recipe.data.pp_eval)
    if model.config.include_top:
        model.class_names, model.values = (None, stated) if stated else (names, None)
    logging.info("Using the weights of step %d, from %s", chosen.step, chosen.path)
    return model, chosen.step, sha256


def _check_finished(directory: str, model_file: str) -> None:
    """Raise a FileNotFoundError if a run does not have its final model."""
    if os.path.exists(model_file):
        return
    raise FileNotFoundError(
        f"Expected {os.path.basename(model_file)} in the directory {directory!r}. A run writes it when training ends. "
        "To finish an interrupted run, start `keras-vit train` again with the same --workdir. "
        f"Usable with --checkpoint: {chosen_checkpoint.listed(os.path.join(directory, CHECKPOINTS))}."
    )
