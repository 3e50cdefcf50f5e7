"""Interface of tasks, and functions that compute the loss and the evaluation of a batch."""

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
    """Examples of an evaluation, ready to be displayed.

    Attributes:
        images: Images `[n, h, w, c]` by name: only the images, or input, visible patches and reconstruction.
        captions: Prediction for each image, followed by a line break and the label if they differ. May be empty.
        right: Whether each prediction is right; None for tasks without right and wrong predictions.
        confidence: Confidence of each prediction, `[n]`, by which mistakes are sorted; None if `right` is None.
    """

    images: Mapping[str, np.ndarray]
    captions: Sequence[str] = ()
    right: np.ndarray | None = None
    confidence: np.ndarray | None = None


class Task:
    """Learning task of a run: targets, loss and scores as pure functions, and the display of predictions.

    A task is created once per run from the recipe and the training split. The split is None if only the model is
    needed.

    Attributes:
        recipe: The recipe.
        arguments: The task of the recipe, `keras_vit.recipe.Task`.
        outputs: Number of outputs of the model; 0 if the task determines it.
        teacher: Model that the task learns from, opened by `open`; None without a teacher.
        counts: Whether `tally` counts anything.
        collects: Whether `of_examples` needs the predictions of an evaluation.
    """

    teacher: Any = None
    counts = False
    collects = False
    # Maps (seed, step, batch size) to additional entries of a global batch; None for tasks without such entries.
    draw: Callable[[int, Any, int], dict[str, Any]] | None = None

    def __init__(self, recipe: recipes.Recipe, source: "Source | None" = None, outputs: int = 0):
        self.recipe, self.outputs = recipe, source.num_outputs if source is not None else outputs
        self.arguments: Any = recipe.task

    def open(self, channels: int) -> None:
        """Load the teacher, if the task has one, onto the devices."""

    def record(self) -> dict[str, Any]:
        """Return the facts about the task's data for `config.json`."""
        return {}

    def name_outputs(self, model: keras.Model) -> None:
        """Set the names of the outputs on a model."""

    def on_host(self, batches: Any) -> Any:
        """Return a `tf.data.Dataset` of batches with the additional entries that the task computes on the host."""
        return batches

    def values(self, images: Any, batch: dict) -> tuple:
        """Return the values of a batch as a tuple of arrays `[b, ...]`. `images` are in the model's range."""
        raise NotImplementedError

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple[dict[str, Any], Any]:
        """Return the metrics of each example by name, float32 `[b]`, and predictions `[b, ...]`."""
        raise NotImplementedError

    def tally(self, values: tuple, predictions: Any, valid: Any) -> Any:
        """Return counts that an evaluation sums over its batches, such as `[true classes, predicted classes]`."""
        return ops.zeros([0, 0], dtype="float32")

    def of_tally(self, tally: np.ndarray) -> dict[str, float]:
        """Return the metrics of an evaluation that are computed from its tally."""
        return {}

    def of_examples(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        """Return the metrics of an evaluation that are computed from all of its predictions and labels."""
        return {}

    def lines(self, tally: np.ndarray) -> list[str]:
        """Return the tally of an evaluation as lines of text; empty for a confusion matrix of classes."""
        return []

    def show(self, batch: Mapping[str, np.ndarray], preprocess: Callable) -> Shown:
        """Return the examples of a batch for display. The batch must contain `"predictions"`.

        `preprocess` maps images of the pipeline to the model's range.
        """
        raise NotImplementedError


def loss_and_metrics(
    task: Task, model: keras.Model, values: Any, global_batch_size: int, moving: Sequence[keras.Variable] = ()
) -> tuple[Any, dict[str, Any], list[Any]]:
    """Return the share of some examples in a global batch's mean loss, mean metrics and moving statistics.

    The model runs in training mode. Call this function within a `keras.StatelessScope`, which stores the new values of
    `moving`. The sum of the shares is the average of these values over the parts of the batch.
    """
    of_examples, _ = task(model, values, training=True)  # [b] each
    means = {name: ops.sum(value) / global_batch_size for name, value in of_examples.items()}
    share = ops.cast(ops.shape(of_examples["loss"])[0], "float32") / global_batch_size
    moved = [variable.value * share for variable in moving]  # in the scope, `value` is the new value
    return means["loss"], means, moved


def evaluation(
    task: Task, model: keras.Model, inputs: Callable
) -> Callable[[Iterable[tuple], dict], tuple[dict[str, Any], Any, Any]]:
    """Return a function that evaluates a batch. Examples whose `valid` is 0 are excluded.

    The function takes pairs of (variable, value for the evaluation) and a batch. `inputs` maps the batch to the values
    of the task. The function returns the sums of the metrics and of `"examples"` by name, the tally, and the
    predictions `[b, ...]`.
    """

    def evaluate(weights, batch):
        values, valid = inputs(batch), ops.cast(batch["valid"], "float32")
        with keras.StatelessScope(weights, initialize_variables=False):
            of_examples, predictions = task(model, values, training=False)
        sums = {name: ops.sum(value * valid) for name, value in of_examples.items()}
        return {**sums, "examples": ops.sum(valid)}, task.tally(values, predictions, valid), predictions

    return evaluate
