"""Interface of tasks, and functions that compute the loss and the evaluation of a batch."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_vit import models
from keras_vit.util.metrics import Metric

if TYPE_CHECKING:
    from keras_vit.data.sources import Source

LOSS = Metric("loss", larger_is_better=False)
NATS = Metric("loss", larger_is_better=False, unit="nats")
ACCURACY = Metric("accuracy", unit="%")


@dataclasses.dataclass(frozen=True)
class Shown:
    """Examples of an evaluation, ready to be displayed.

    Attributes:
        images: Images `[n, h, w, c]` by name: only the images, or input, visible patches and reconstruction.
        captions: Prediction for each image, followed by a line break and the label if they differ. May be empty.
        right: Whether each prediction is right; None for tasks without right and wrong predictions.
        confidence: Confidence of each prediction, `[n]`, by which mistakes are sorted; None if `right` is None.
        masks: Masks of class numbers `[n, h, w]` by name, to overlay the images with.
    """

    images: Mapping[str, np.ndarray]
    captions: Sequence[str] = ()
    right: np.ndarray | None = None
    confidence: np.ndarray | None = None
    masks: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


class Task:
    """Base class of the learning tasks.

    A task is a dataclass of its arguments. `str(task)` returns the text that `parse_task` reads, without arguments at
    their defaults. The task of a recipe contains facts that programs need before they create a model. `tasks.bind`
    returns a copy for a run, which also computes the targets, the loss and the scores as pure functions, and displays
    predictions.

    Attributes:
        name: Name of the task.
        labels: Kind of labels that the task reads: `label_kind` of `keras_vit.data.Source`, or None.
        losses: Values of the recipe's field `loss` that the task supports.
        metrics: Metrics of an evaluation: first the loss, then the score, then other metrics of the task.
        evaluator: Default evaluator of `keras-vit evaluate`; an empty string for a task without evaluator.
        teacher: Directory of the teacher's run, or None.
        linear_loss: Loss of `evaluators.linear_fit` with which a linear head can be fitted to features; an empty string
            if the task does not support this.
        counts: Whether `tally` counts anything.
        collects: Whether `of_examples` needs the predictions of an evaluation.
        recipe: The recipe of the run.
        outputs: Number of outputs of the run's model; 0 if the task determines it.
        class_names: Names of the classes, in the order of the outputs; empty without classes.
        teacher_model: Function from images to the logits of the teacher; None without a teacher.

    Example:
    >>> [metric.name for metric in parse_task("mae").metrics]
    ['loss', 'explained']
    """

    name: ClassVar[str]
    labels: ClassVar[str | None] = None
    losses: ClassVar[tuple[str, ...]] = ("softmax", "sigmoid")
    metrics: ClassVar[tuple[Metric, ...]]
    evaluator: ClassVar[str] = ""
    teacher: Any = None
    linear_loss = ""
    counts = False
    collects = False
    # Maps (seed, step, batch size) to additional entries of a global batch; None for tasks without such entries.
    draw: Callable[[int, Any, int], dict[str, Any]] | None = None
    # Set for a run:
    recipe: Any
    outputs: int
    class_names: tuple[str, ...] = ()
    teacher_model: Any = None

    def __post_init__(self):
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.type in (float, bool) and isinstance(value, int):
                setattr(self, field.name, field.type(value))

    def __str__(self) -> str:
        values = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        arguments = ", ".join(f"{field.name}={value!r}" for field, value in values if value != field.default)
        return f"{self.name}({arguments})" if arguments else self.name

    @property
    def score(self) -> Metric:
        """Metric used to choose the best checkpoint."""
        return self.metrics[1]

    @property
    def step_metrics(self) -> tuple[Metric, ...]:
        """Metrics that are also computed in training steps."""
        return self.metrics

    def create_head(self, outputs: int, dtype: str) -> keras.layers.Layer | None:
        """Return the argument `head` of the model, or None to build the head from the other arguments."""
        return None

    def loss_values(self, recipe: Any, outputs: int) -> int:
        """Return the number of float32 values per image that the loss saves for the backward pass; 0 if negligible."""
        return 0

    def output(self, recipe: Any) -> str:
        """Return the kind of output that the model card states."""
        return "features"

    def check(self, recipe: Any) -> None:
        """Check that the recipe sets no fields that the task does not support.

        Raises:
            ValueError: If such a field is set.
        """
        if recipe.loss not in self.losses:
            raise ValueError(f"task={str(self)!r} requires loss={self.losses[0]!r}. Received: loss={recipe.loss!r}.")
        set_fields = {
            "label_smoothing": recipe.label_smoothing,
            "data.mixup": recipe.data.mixup,
            "data.cutmix": recipe.data.cutmix,
        }
        for name, value in set_fields.items():
            if value and self.labels not in (None, "class", "classes"):
                raise ValueError(
                    f"{name} mixes labels of classes, but the labels of task={str(self)!r} are of the kind "
                    f"{self.labels!r}. Received: {name}={value}. Set it to 0."
                )
        if recipe.class_weight_exponent and (self.name, recipe.loss) != ("classification", "softmax"):
            raise ValueError(
                "class_weight_exponent weights the classes of task='classification' with loss='softmax'. Received: "
                f"class_weight_exponent={recipe.class_weight_exponent}, task={str(self)!r}, loss={recipe.loss!r}. Set "
                "it to 0."
            )

    def require_vit(self, recipe: Any) -> None:
        """Raise a ValueError if the model of the recipe is not a Vision Transformer."""
        variant = recipe.model.variant
        if variant not in models.VIT:
            raise ValueError(f"task={str(self)!r} needs a Vision Transformer. Received: model.variant={variant!r}.")

    def prepare(self, source: "Source | None") -> None:
        """Set the attributes of a run; see `tasks.bind`. `source` is None if only the model is needed."""

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
