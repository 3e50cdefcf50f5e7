"""The learning tasks of a recipe. In files and on the command line, a task is a text: `"mae(mask_ratio=0.75)"`."""

import dataclasses
import os
from typing import Any, ClassVar

import keras

from keras_vit import models
from keras_vit.recipe.task import Task
from keras_vit.util import checks, literal_calls
from keras_vit.util.metrics import Metric

_LOSS = Metric("loss", larger_is_better=False)
_NATS = Metric("loss", larger_is_better=False, unit="nats")
_ACCURACY = Metric("accuracy", unit="%")


@dataclasses.dataclass(frozen=True)
class Classification(Task):
    """Classification of images with one class each.

    Example:
    >>> parse_task("classification").score.name
    'accuracy'
    """

    name: ClassVar[str] = "classification"
    labels: ClassVar[str | None] = "class"
    metrics: ClassVar[tuple[Metric, ...]] = (_NATS, _ACCURACY)
    evaluator: ClassVar[str] = "classification"

    def output(self, recipe: Any) -> str:
        """Return the loss of the recipe, which determines how logits become probabilities."""
        return recipe.loss


@dataclasses.dataclass(frozen=True)
class MultiLabel(Classification):
    """Classification of images with any number of classes each, whose probabilities are independent.

    The score is the mean average precision: the mean over the classes of the area under the precision-recall curve.

    Example:
    >>> parse_task("multi_label").score.name
    'mean_average_precision'
    """

    name: ClassVar[str] = "multi_label"
    labels: ClassVar[str | None] = "classes"
    metrics: ClassVar[tuple[Metric, ...]] = (_NATS, Metric("mean_average_precision", unit="%"))

    @property
    def step_metrics(self) -> tuple[Metric, ...]:
        """Loss. The precision is a property of the whole split."""
        return self.metrics[:1]

    def check(self, recipe: Any) -> None:
        """Check that the loss treats the classes independently."""
        super().check(recipe)
        if recipe.loss != "sigmoid":
            raise ValueError(f"Several classes per image need loss='sigmoid'. Received: loss={recipe.loss!r}.")


@dataclasses.dataclass(frozen=True)
class Distillation(Classification):
    """Classification that learns from the predictions of a trained model, the teacher.

    The teacher sees the same augmented images as the model. The labels are only used for the accuracy.

    Attributes:
        teacher: Directory of a finished run with the same classes. Images are resized to the size of the teacher.
        temperature: Divisor of all logits before the softmax.

    Example:
    >>> parse_task("distillation('runs/bit')").teacher
    'runs/bit'
    """

    name: ClassVar[str] = "distillation"
    teacher: str
    temperature: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "teacher", os.fspath(self.teacher))
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive. Received: temperature={self.temperature}")

    def check(self, recipe: Any) -> None:
        """Check that the loss suits the teacher's probabilities."""
        super().check(recipe)
        if recipe.loss != "softmax" or recipe.label_smoothing:
            raise ValueError(
                "Distillation learns the probabilities of the teacher, which requires loss='softmax' and "
                f"label_smoothing=0. Received: loss={recipe.loss!r}, label_smoothing={recipe.label_smoothing}."
            )


@dataclasses.dataclass(frozen=True)
class Regression(Task):
    """Prediction of one or several numbers per image.

    For training, the numbers are standardized with the mean and standard deviation of the training split. All
    predictions are in the unit of the data. The score is the mean absolute error of the standardized numbers, in which
    numbers with different units count alike.

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
        _LOSS,
        Metric("standardized_mae", larger_is_better=False),
        Metric("mae", larger_is_better=False),
    )
    evaluator: ClassVar[str] = "regression"

    def __post_init__(self):
        checks.choice("loss", self.loss, ("mse", "mae", "huber"))

    def output(self, recipe: Any) -> str:
        """Return `"values"`."""
        return "values"


@dataclasses.dataclass(frozen=True)
class Segmentation(Task):
    """Prediction of a class for each pixel.

    The score is the intersection over union, computed over all pixels of the data set and averaged over the classes.
    The ignored class, and classes that are absent from both the masks and the predictions, are left out.

    Attributes:
        classes: Number of classes. None takes the number from the data; any other number must match the data.
        ignore: Number of a class whose pixels are ignored, in addition to ignored pixels of the masks. 255 stands for
            no class.
        head: `"linear"` or `"upsample"`; see `keras_vit.models.LinearSegmenter` and `UpsampleSegmenter`.
        blocks: Indices of the blocks that the head reads. Negative indices count from the end. None stands for the last
            block.
        class_weights: Factor on the loss of each class. None stands for 1.
        dropout_rate: Probability of dropping a whole channel of an image before the head.

    References:
        - [DINOv2](https://arxiv.org/abs/2304.07193), section 7.4, for `head="linear"` on frozen features

    Example:
    >>> str(parse_task("segmentation(head='upsample', blocks=(2, 5, 8, 11))"))
    "segmentation(head='upsample', blocks=(2, 5, 8, 11))"
    """

    classes: int | None = None
    ignore: int = 255
    head: str = "linear"
    blocks: tuple[int, ...] | None = None
    class_weights: tuple[float, ...] | None = None
    dropout_rate: float = 0.0
    name: ClassVar[str] = "segmentation"
    labels: ClassVar[str | None] = "mask"
    metrics: ClassVar[tuple[Metric, ...]] = (_NATS, Metric("miou", unit="%"), Metric("pixel_accuracy", unit="%"))
    evaluator: ClassVar[str] = "segmentation"

    def __post_init__(self):
        super().__post_init__()
        checks.choice("head", self.head, tuple(models.dense_heads.HEADS))
        for name in ("blocks", "class_weights"):
            if getattr(self, name) is not None:
                values = tuple(checks.sequence(name, getattr(self, name), "numbers, one or several"))
                object.__setattr__(self, name, values)
        checks.rate("dropout_rate", self.dropout_rate)

    @property
    def step_metrics(self) -> tuple[Metric, ...]:
        """Loss and accuracy. The mean of the intersection over union over steps would be misleading."""
        return (self.metrics[0], self.metrics[2])

    def create_head(self, outputs: int, dtype: str) -> keras.layers.Layer:
        """Return the layer that classifies the patches."""
        kind = models.dense_heads.HEADS[self.head]
        return kind(outputs, blocks=self.blocks, dropout_rate=self.dropout_rate, dtype=dtype)

    def loss_values(self, recipe: Any, outputs: int) -> int:
        """Return the number of logits at the size of the masks, plus their gradients."""
        return 2 * outputs * recipe.model.image_size**2

    def output(self, recipe: Any) -> str:
        """Return `"mask"`."""
        return "mask"

    def check(self, recipe: Any) -> None:
        """Check that the loss is for one class per pixel."""
        super().check(recipe)
        if recipe.loss != "softmax":
            raise ValueError(f"Segmentation has one class per pixel: loss='softmax'. Received: loss={recipe.loss!r}.")


@dataclasses.dataclass(frozen=True)
class MaskedPatch(Task):
    """Masked patch prediction, as in the ViT paper. It does not need labels.

    Attributes:
        mask_ratio: Fraction of the patches that are corrupted and predicted.
        target: `"mean_color"`, `"colors_4x4"` or `"pixels"`.

    Example:
    >>> MaskedPatch(target="pixels").arguments()
    {'mask_ratio': 0.5, 'target': 'pixels'}
    """

    mask_ratio: float = 0.5
    target: str = "mean_color"
    name: ClassVar[str] = "masked_patch"
    metrics: ClassVar[tuple[Metric, ...]] = (_LOSS, _ACCURACY)
    model: ClassVar[type | None] = models.MaskedPatchPredictor
    config: ClassVar[type | None] = models.MaskedPatchConfig


@dataclasses.dataclass(frozen=True)
class MAE(Task):
    """Masked autoencoder. It does not need labels.

    Attributes:
        mask_ratio: Fraction of the patches that are hidden from the encoder.
        normalize_pixels: Whether the target of each patch is normalized to mean 0 and variance 1.
        decoder_hidden_size: Width of the decoder's tokens.
        decoder_num_layers: Number of blocks in the decoder.
        decoder_num_heads: Number of attention heads per block of the decoder.

    Example:
    >>> MAE(normalize_pixels=False).arguments()["mask_ratio"]
    0.75
    """

    mask_ratio: float = 0.75
    normalize_pixels: bool = True
    decoder_hidden_size: int = 512
    decoder_num_layers: int = 8
    decoder_num_heads: int = 16
    name: ClassVar[str] = "mae"
    metrics: ClassVar[tuple[Metric, ...]] = (_LOSS, Metric("explained", unit="%"))
    model: ClassVar[type | None] = models.MaskedAutoencoder
    config: ClassVar[type | None] = models.MAEConfig

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the model that belong to the task."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "normalize_pixels"}


TASKS: dict[str, Any] = {
    task.name: task for task in (Classification, MultiLabel, Distillation, Regression, Segmentation, MaskedPatch, MAE)
}


def parse_task(text: str | Task) -> Task:
    """Parse a task, such as `"classification"` or `"mae(mask_ratio=0.5)"`. `str(task)` is the inverse.

    Raises:
        ValueError: If the task or an argument does not exist. The message marks the place in the text.

    Example:
    >>> parse_task("mae(mask_ratio=0.5)")
    MAE(mask_ratio=0.5, normalize_pixels=True, decoder_hidden_size=512, decoder_num_layers=8, decoder_num_heads=16)
    >>> str(parse_task("mae(mask_ratio=0.5, normalize_pixels=True)"))
    'mae(mask_ratio=0.5)'
    """
    if isinstance(text, Task):
        return text
    calls = literal_calls.parse(text, "task", "mae(mask_ratio=0.75)")
    if len(calls) != 1:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, with its arguments. Received: task={text!r}")
    task, _ = calls[0].create(calls[0].function(TASKS, "task"))
    return task
