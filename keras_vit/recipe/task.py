"""Base class of the learning tasks of a recipe."""

import dataclasses
from typing import Any, ClassVar

import keras

from keras_vit.util.metrics import Metric


class Task:
    """Base class of the tasks: their arguments, and facts that programs need before they create a model.

    Targets and losses are in `keras_vit.training.tasks`. `str(task)` returns the text that `parse_task` reads, without
    arguments at their defaults.

    Attributes:
        name: Name of the task.
        labels: Kind of labels that the task reads: `label_kind` of `keras_vit.data.Source`, or None.
        metrics: Metrics of an evaluation: first the loss, then the score, then other metrics of the task.
        evaluator: Default evaluator of `keras-vit evaluate`; an empty string for a task without evaluator.
        model: Class of the model. None for the variant of the recipe with a head.
        config: Class of the model's configuration. None for the variant of the recipe with a head.
        teacher: Directory of the teacher's run, or None.

    Example:
    >>> [metric.name for metric in parse_task("mae").metrics]
    ['loss', 'explained']
    """

    name: ClassVar[str]
    labels: ClassVar[str | None] = None
    metrics: ClassVar[tuple[Metric, ...]]
    evaluator: ClassVar[str] = ""
    model: ClassVar[type | None] = None
    config: ClassVar[type | None] = None
    teacher: Any = None

    def __post_init__(self):
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.type in (float, bool) and isinstance(value, int):
                object.__setattr__(self, field.name, field.type(value))

    @property
    def score(self) -> Metric:
        """Metric used to choose the best checkpoint."""
        return self.metrics[1]

    @property
    def step_metrics(self) -> tuple[Metric, ...]:
        """Metrics that are also computed in training steps."""
        return self.metrics

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the model that belong to the task."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]

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
        if recipe.class_balance and (self.name, recipe.loss) != ("classification", "softmax"):
            raise ValueError(
                "class_balance weights the classes of task='classification' with loss='softmax'. Received: "
                f"class_balance={recipe.class_balance}, task={str(self)!r}, loss={recipe.loss!r}. Set it to 0."
            )

    def __str__(self) -> str:
        values = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        arguments = ", ".join(f"{field.name}={value!r}" for field, value in values if value != field.default)
        return f"{self.name}({arguments})" if arguments else self.name
