"""The task of a recipe, written like `"mae(mask_ratio=0.75)"` in files and on the command line."""

import dataclasses
import os
from typing import Any, ClassVar

from keras_vit import _spec, models


class _Written:
    """Base class of the tasks. `str` returns the text that `parse_task` reads, without arguments at their defaults."""

    name: ClassVar[str]

    def __post_init__(self):
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.type in (float, bool) and isinstance(value, int):
                object.__setattr__(self, field.name, field.type(value))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the model that belong to the task."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    def __str__(self) -> str:
        values = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        arguments = ", ".join(f"{field.name}={value!r}" for field, value in values if value != field.default)
        return f"{self.name}({arguments})" if arguments else self.name


@dataclasses.dataclass(frozen=True)
class Classification(_Written):
    """Classification of labeled images.

    Attributes:
        score: Name of the metric that the best checkpoint has most of.

    Example:
    >>> parse_task("classification").score
    'accuracy'
    """

    name: ClassVar[str] = "classification"
    score: ClassVar[str] = "accuracy"


@dataclasses.dataclass(frozen=True)
class Distillation(Classification):
    """Classification of images as a trained model, the teacher, classifies them.

    The teacher sees the same augmented images as the model. The labels are read for the accuracy alone.

    Attributes:
        teacher: Directory of a finished run with the same classes. The images are resized to its model's size.
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


@dataclasses.dataclass(frozen=True)
class MaskedPatch(_Written):
    """Masked patch prediction, as in the ViT paper. Labels are not read.

    Attributes:
        mask_ratio: Fraction of the patches that is corrupted and predicted.
        target: `"mean_color"`, `"colors_4x4"` or `"pixels"`.

    Example:
    >>> MaskedPatch(target="pixels").arguments()
    {'mask_ratio': 0.5, 'target': 'pixels'}
    """

    mask_ratio: float = 0.5
    target: str = "mean_color"
    name: ClassVar[str] = "masked_patch"
    score: ClassVar[str] = "accuracy"
    model: ClassVar[type] = models.MaskedPatchPredictor
    config: ClassVar[type] = models.MaskedPatchConfig


@dataclasses.dataclass(frozen=True)
class MAE(_Written):
    """Masked autoencoder. Labels are not read.

    Attributes:
        mask_ratio: Fraction of the patches that the encoder does not see.
        normalize_pixels: Whether each patch is predicted with mean 0 and variance 1.
        decoder_hidden_size: Width of the decoder's tokens.
        decoder_num_layers: Number of blocks of the decoder.
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
    score: ClassVar[str] = "explained"
    model: ClassVar[type] = models.MaskedAutoencoder
    config: ClassVar[type] = models.MAEConfig

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the model that belong to the task."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "normalize_pixels"}


Task = Classification | MaskedPatch | MAE
TASKS: dict[str, Any] = {task.name: task for task in (Classification, Distillation, MaskedPatch, MAE)}


def parse_task(text: str | Task) -> Task:
    """Read a task, such as `"classification"` or `"mae(mask_ratio=0.5)"`. `str(task)` is its text.

    Raises:
        ValueError: If there is no such task, or it has no such argument. The message points at the place.

    Example:
    >>> parse_task("mae(mask_ratio=0.5)")
    MAE(mask_ratio=0.5, normalize_pixels=True, decoder_hidden_size=512, decoder_num_layers=8, decoder_num_heads=16)
    >>> str(parse_task("mae(mask_ratio=0.5, normalize_pixels=True)"))
    'mae(mask_ratio=0.5)'
    """
    if isinstance(text, Task):
        return text
    calls = _spec.parse(text, "task", "mae(mask_ratio=0.75)")
    if len(calls) != 1:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, with its arguments. Received: task={text!r}")
    task, _ = calls[0].create(calls[0].function(TASKS, "task"))
    return task
