"""A run: the record in its directory, and its trained model. `load_run` opens it."""

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import logging

from keras_vit.outputs import CLASSIFICATION
from keras_vit.runs import checkpoints, run_directory
from keras_vit.runs.run_directory import CHECKPOINTS, CONFIG, MODEL
from keras_vit.util import file_io, locks, storage
from keras_vit.util.metrics import Metric

if TYPE_CHECKING:
    import keras

    from keras_vit.recipe import Recipe
# Tables of runs read only the records, without Keras and TensorFlow.


class _Trained(NamedTuple):
    model: "keras.Model"
    step: int | None
    sha256: str


class Run:
    """A run in a local directory. Its model is read at first use.

    Only this class reads run directories. `training.run.TrainingRun` writes them, and has the open store of checkpoints
    and the open data instead of a model.

    Args:
        path: A run directory, or a `.keras` file in a run directory.
        checkpoint: Weights of the model, see `load_run`.

    Attributes:
        path: The run directory.
        config: Content of `config.json`.

    Raises:
        FileNotFoundError: If there is no `config.json`.
        ValueError: If `config.json` is damaged.

    Example:
    >>> run = load_run("runs/digits")
    >>> run.preprocess, run.class_names[:2], run.state
    ('value_range(-1, 1)', ('0', '1'), 'finished')
    """

    def __init__(self, path: str, checkpoint: str | int | None = None):
        self._file = path if path.endswith(".keras") else os.path.join(path, MODEL)
        self.path = os.path.dirname(self._file) or "."
        self._checkpoint = None if checkpoint is None else str(checkpoint)
        self.config: dict[str, Any] = run_directory.read_config(self.path)

    @functools.cached_property
    def lines(self) -> list[dict[str, Any]]:
        """Lines of `metrics.jsonl`."""
        return run_directory.read_metrics(self.path)

    @functools.cached_property
    def recipe(self) -> "Recipe":
        """The recipe."""
        from keras_vit import recipe as recipes

        return recipes.from_dict(run_directory.recipe_of(self.config))

    @functools.cached_property
    def metrics(self) -> Sequence[Metric]:
        """Loss, score and other metrics of the task."""
        stated = self.config.get("metrics")  # absent in runs of earlier versions
        return [Metric(**metric) for metric in stated] if stated else self.recipe.task.metrics

    @property
    def preprocess(self) -> str:
        """Preprocessing from an encoded image to the model's input."""
        return self.config["preprocess"]

    @property
    def results(self) -> dict[str, Any]:
        """Metrics of the evaluation of the model by name, such as `"eval_accuracy"`; empty without an evaluation."""
        return run_directory.last_evaluation(self.path, self.step)

    @property
    def state(self) -> str:
        """`"finished"`, `"running, step 40 of 100"` or `"step 40 of 100"`."""
        if run_directory.is_finished(self.path):
            return "finished"
        saved = checkpoints.complete_steps(os.path.join(self.path, CHECKPOINTS))
        total, step = self.config["recipe"]["total_steps"], max([0, *(line["step"] for line in self.lines), *saved])
        if locks.is_taken(self.path):
            return f"running, step {step:,} of {total:,}"
        return f"step {step:,} of {total:,}" + (", without a model" if step >= total else "")

    @property
    def model(self) -> "keras.Model":
        """The model."""
        return self._trained.model

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits; empty for a model without classes."""
        return self.model.class_names or ()

    @property
    def step(self) -> int | None:
        """Step of the checkpoint of the weights; None for the weights in `model.keras`."""
        return self._trained.step

    @property
    def sha256(self) -> str:
        """SHA-256 of the model file or, for a checkpoint, of its manifest and `config.json`."""
        return self._trained.sha256

    @functools.cached_property
    def _trained(self) -> _Trained:
        from keras_vit.checkpoints.keras_files import load_keras_file

        if self._checkpoint is not None:
            return self._restored(self._checkpoint)
        sha256 = file_io.sha256(self._file)
        return _Trained(load_keras_file(self._file), None, sha256)

    def _restored(self, checkpoint: str) -> _Trained:
        """Build the model with the weights of the checkpoint."""
        from keras_vit import recipe as recipes
        from keras_vit.models.variables import weights
        from keras_vit.runs import chosen_checkpoint, pixel_range

        chosen = chosen_checkpoint.choose(os.path.join(self.path, CHECKPOINTS), checkpoint)
        sha256 = file_io.joint_sha256([checkpoints.manifest_of(chosen.path), os.path.join(self.path, CONFIG)])
        recipe, data = recipes.resolve(self.recipe, self.config.get("architecture")), self.config["data"]
        names, stated = data["class_names"], data.get("values")
        model = recipes.build_model(recipe, len(stated["names"]) if stated else len(names), data.get("channels", 3))
        variables = {variable.path: variable for variable in weights(model)}
        values = chosen.weights({path: tuple(variable.shape) for path, variable in variables.items()})
        for path, variable in variables.items():
            variable.assign(values[path])
        pixel_range.set_normalization(model, recipe.data.pp_eval)
        if model.config.include_top:
            output = recipe.task.output(recipe)
            model.class_names, model.values = (None, stated) if stated else (names, None)
            model.prediction_activation = output if output in CLASSIFICATION else None
        logging.info("Using the weights of step %d, from %s", chosen.step, chosen.path)
        return _Trained(model, chosen.step, sha256)


def load_run(path: str | os.PathLike, checkpoint: str | int | None = None) -> Run:
    """Open a run: its model and everything needed to use it.

    Args:
        path: A run directory, a `.keras` file in a run directory, or the URL of either in a bucket.
        checkpoint: Weights of the model. By default, the weights in `model.keras`, which a run writes at its end: the
            weights of the best evaluation or, without evaluations during the training, the last weights. `"best"` and
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
    path = storage.fetched(path, checkpoint)
    file = path if path.endswith(".keras") else os.path.join(path, MODEL)
    if checkpoint is None and not os.path.exists(file):
        from keras_vit.runs import chosen_checkpoint

        directory = os.path.dirname(file) or "."
        raise FileNotFoundError(
            f"Expected {os.path.basename(file)} in the directory {directory!r}. A run writes it when training ends. "
            "To finish an interrupted run, start `keras-vit train` again with the same --workdir. "
            f"Usable with --checkpoint: {chosen_checkpoint.listed(os.path.join(directory, CHECKPOINTS))}."
        )
    run = Run(path, checkpoint)
    run.model  # noqa: B018  read here, so that errors of the model appear here
    return run
