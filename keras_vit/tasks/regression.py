"""Regression: one or several numbers per image, standardized for training."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_vit.tasks.task import LOSS, Shown, Task
from keras_vit.util import checks, formatting
from keras_vit.util.metrics import Metric
from keras_vit.util.values import Values

if TYPE_CHECKING:
    from keras_vit.data.sources import Source

# Losses as functions of the absolute error. Huber's loss is quadratic below one standard deviation and linear above.
_LOSSES: dict[str, Callable[[Any], Any]] = {
    "mse": ops.square,
    "mae": lambda errors: errors,
    "huber": lambda errors: ops.where(errors < 1.0, 0.5 * ops.square(errors), errors - 0.5),
}


@dataclasses.dataclass
class Regression(Task):
    """Prediction of one or several numbers per image.

    For training, the numbers are standardized with the mean and standard deviation of the training split. All
    predictions are in the unit of the data. The score is the mean absolute error of the standardized numbers, in which
    numbers with different units have equal weight. The values are images `[b, h, w, c]` and standardized labels `[b,
    k]`.

    Attributes:
        loss: Loss of the standardized numbers: `"mse"`, `"mae"`, or `"huber"`, which is quadratic up to one standard
            deviation and linear above it.

    Example:
    >>> parse_task("regression('huber')").score.name
    'standardized_mae'
    """

    loss: str = "mse"
    name: ClassVar[str] = "regression"
    labels: ClassVar[str | None] = "values"
    metrics: ClassVar[tuple[Metric, ...]] = (
        LOSS,
        Metric("standardized_mae", larger_is_better=False),
        Metric("mae", larger_is_better=False),
    )
    evaluator: ClassVar[str] = "regression"
    linear_loss = "squared"

    def __post_init__(self):
        checks.choice("loss", self.loss, tuple(_LOSSES))

    def output(self, recipe: Any) -> str:
        return "values"

    def prepare(self, source: "Source | None") -> None:
        if source is None:  # only the model is built
            names = tuple(map(str, range(self.outputs)))
            self.standard = Values(names, (0.0,) * self.outputs, (1.0,) * self.outputs)
        else:
            from keras_vit.data import values_of  # needs TensorFlow, which the step does not import

            self.standard = values_of(source)

    def record(self) -> dict[str, Any]:
        return {"values": self.standard.to_dict()}

    def name_outputs(self, model: keras.Model) -> None:
        if model.config.include_top:
            model.values = self.standard

    def on_host(self, batches: Any) -> Any:
        """Add standardized labels. In float32, large labels would lose digits before the mean is subtracted."""
        import tensorflow as tf

        def add(batch):
            label = tf.cast(batch["label"], tf.float64)
            standardized = tf.cast(self.standard.standardize(label), tf.float32)
            return {**batch, "label": tf.cast(label, tf.float32), "standardized": standardized}

        return batches.map(add)

    def values(self, images: Any, batch: dict) -> tuple:
        """Return images and standardized labels."""
        if "standardized" in batch:
            return images, batch["standardized"]
        return images, self.standard.standardize(ops.cast(batch["label"], "float32"))

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple[dict[str, Any], Any]:
        """Return losses, absolute errors and predictions. Errors and predictions are in the unit of the data."""
        images, targets = values
        outputs = ops.cast(model(images, training=training), "float32")  # [b, k]
        errors = ops.abs(outputs - targets)
        loss = ops.mean(_LOSSES[self.loss](errors), axis=-1)
        mae = ops.mean(errors * np.asarray(self.standard.deviation, np.float32), axis=-1)
        metrics = {"loss": loss, "standardized_mae": ops.mean(errors, axis=-1), "mae": mae}
        return metrics, self.standard.restore(outputs)

    def show(self, batch: Mapping[str, np.ndarray], preprocess: Callable) -> Shown:
        """Return the images with predicted and true numbers."""
        captions = [
            f"{_listed(predicted)}\n(is {_listed(true)})"
            for predicted, true in zip(batch["predictions"], batch["label"], strict=True)
        ]
        return Shown({"image": batch["image"]}, captions)


def _listed(values: np.ndarray) -> str:
    return ", ".join(formatting.number(float(value)) for value in values)
