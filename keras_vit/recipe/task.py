"""The task of a recipe: what a model learns, written like `"mae(mask_ratio=0.75)"`."""

import dataclasses
from typing import Any, ClassVar

from keras_vit import _calls, models


@dataclasses.dataclass(frozen=True)
class Classification:
    """Classification of labeled images.

    Attributes:
        score: Name of the metric that the best checkpoint has most of.

    Example:
    >>> parse_task("classification").score
    'accuracy'
    """

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

    teacher: str
    temperature: float = 1.0

    def __post_init__(self):
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive. Received: temperature={self.temperature}")


@dataclasses.dataclass(frozen=True)
class MaskedPatch:
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
    score: ClassVar[str] = "accuracy"
    model: ClassVar[type] = models.MaskedPatchPredictor
    config: ClassVar[type] = models.MaskedPatchConfig

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the model that belong to the task."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class MAE:
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
    score: ClassVar[str] = "explained"
    model: ClassVar[type] = models.MaskedAutoencoder
    config: ClassVar[type] = models.MAEConfig

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the model that belong to the task."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "normalize_pixels"}


Task = Classification | MaskedPatch | MAE
TASKS: dict[str, type] = {
    "classification": Classification,
    "distillation": Distillation,
    "masked_patch": MaskedPatch,
    "mae": MAE,
}


def parse_task(text: str) -> Task:
    """Read a task, such as `"classification"` or `"mae(mask_ratio=0.5)"`.

    Raises:
        ValueError: If there is no such task, or it has no such argument. The message points at the place.

    Example:
    >>> parse_task("mae(mask_ratio=0.5)").mask_ratio
    0.5
    """
    calls = _calls.parse(text, "task", "mae(mask_ratio=0.75)")
    if len(calls) != 1:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, with its arguments. Received: task={text!r}")
    task, _ = calls[0].create(calls[0].function(TASKS, "task"))
    return task
