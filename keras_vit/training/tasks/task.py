"""Tasks as the training step sees them: their interface, and loss and evaluation of a batch."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_vit import recipe as recipes

if TYPE_CHECKING:
    from keras_vit.data.sources import Source


@dataclasses.dataclass(frozen=True)
class Shown:
    """Examples of an evaluation, as people see them.

    Attributes:
        images: Images `[n, h, w, c]` by name: one kind, or input, what the model saw, and reconstruction.
        captions: Prediction for each image, with the label behind a line break where it differs; empty for none.
        right: Whether each prediction is right; None where predictions are not right or wrong.
        confidence: Number by which mistakes are ordered, `[n]`; None likewise.
    """

    images: Mapping[str, np.ndarray]
    captions: Sequence[str] = ()
    right: np.ndarray | None = None
    confidence: np.ndarray | None = None


class Task:
    """Learning task of a run: targets, loss and scores as pure functions, and how people see a prediction.

    A subclass is created once per run, from the recipe and the training split; the split is None where only the network
    is asked for, without data.

    Attributes:
        recipe: The recipe.
        arguments: The task of the recipe, `keras_vit.recipe.Task`.
        outputs: Number of outputs of the model; 0 where the task decides it.
        teacher: Model that the task learns from; None, or opened by `open`.
        counts: Whether `tally` counts anything.
    """

    teacher: Any = None
    counts = False
    # Function of (seed, step, batch size) to further entries of a global batch, for tasks that have some.
    draw: Callable[[int, Any, int], dict[str, Any]] | None = None

    def __init__(self, recipe: recipes.Recipe, source: "Source | None" = None, outputs: int = 0):
        self.recipe, self.outputs = recipe, source.num_outputs if source is not None else outputs
        self.arguments: Any = recipe.task

    def open(self, channels: int) -> None:
        """Open what the task needs beside the model, on the devices."""

    def record(self) -> dict[str, Any]:
        """Return what `config.json` states of the task's data."""
        return {}

    def name_outputs(self, model: keras.Model) -> None:
        """Write into a model what its outputs mean."""

    def values(self, images: Any, batch: dict) -> tuple:
        """Return the values of a batch, a tuple of arrays `[b, ...]`, from images in the range of the model."""
        raise NotImplementedError

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple[dict[str, Any], Any]:
        """Return the metrics of each example by name, float32 `[b]`, and predictions `[b, ...]`."""
        raise NotImplementedError

    def tally(self, values: tuple, predictions: Any, valid: Any) -> Any:
        """Return counts of a batch that an evaluation sums up, such as `[true classes, predicted classes]`."""
        return ops.zeros([0, 0], dtype="float32")

    def of_tally(self, tally: np.ndarray) -> dict[str, float]:
        """Return the metrics of an evaluation that follow from its tally, beside the means over the examples."""
        return {}

    def lines(self, tally: np.ndarray) -> list[str]:
        """Return the tally of an evaluation as lines of text; none for a confusion of classes."""
        return []

    def show(self, batch: Mapping[str, np.ndarray], preprocess: Callable) -> Shown:
        """Return examples of an evaluation, which have `"predictions"`.

        `preprocess` maps images of the pipeline to the range of the model.
        """
        raise NotImplementedError


def loss_and_metrics(
    task: Task, model: keras.Model, values: Any, global_batch_size: int, moving: Sequence[keras.Variable] = ()
) -> tuple[Any, dict[str, Any], list[Any]]:
    """Return the part of some examples in the global batch's mean loss, mean metrics by name and moving statistics.

    The pass is in training mode, and within a `keras.StatelessScope`, which keeps the new values of `moving`. These are
    averaged over the parts of the batch.
    """
    of_examples, _ = task(model, values, training=True)  # [b] each
    means = {name: ops.sum(value) / global_batch_size for name, value in of_examples.items()}
    share = ops.cast(ops.shape(of_examples["loss"])[0], "float32") / global_batch_size
    moved = [variable.value * share for variable in moving]  # in the scope, a value is the newest
    return means["loss"], means, moved


def evaluation(
    task: Task, model: keras.Model, inputs: Callable
) -> Callable[[Iterable[tuple], dict], tuple[dict[str, Any], Any, Any]]:
    """Return the evaluation of a batch whose examples with `valid` 0 do not count.

    It is a function of pairs of (variable, value to evaluate with) and the batch, which `inputs` maps to the values of
    the task. It returns the sums of metrics and examples by name; the tally; and the predictions `[b, ...]`.
    """

    def evaluate(weights, batch):
        values, valid = inputs(batch), ops.cast(batch["valid"], "float32")
        with keras.StatelessScope(weights, initialize_variables=False):
            of_examples, predictions = task(model, values, training=False)
        sums = {name: ops.sum(value * valid) for name, value in of_examples.items()}
        return {**sums, "examples": ops.sum(valid)}, task.tally(values, predictions, valid), predictions

    return evaluate
