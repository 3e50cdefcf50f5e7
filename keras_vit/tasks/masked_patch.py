"""Masked patch prediction: the model predicts the colors of corrupted patches, as in the ViT paper."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_vit import models
from keras_vit.tasks import patches as p
from keras_vit.tasks.masked import MaskedTask
from keras_vit.tasks.task import ACCURACY, LOSS, Shown
from keras_vit.util.metrics import Metric


@dataclasses.dataclass
class MaskedPatch(MaskedTask):
    """Masked patch prediction, as in the ViT paper. It does not need labels.

    The loss is the cross-entropy of the colors of the corrupted patches, or the squared error of their pixels. The
    score is the fraction of correctly predicted colors. A predicted pixel counts as correct if its error is less than
    half a level of a 3-bit value. The values are images `[b, h, w, c]`, sources and corrupted patches `[b, N]`, and
    targets `[b, N, predictions]`.

    Attributes:
        mask_ratio: Fraction of the patches that are corrupted and predicted.
        target: `"mean_color"`, `"colors_4x4"` or `"pixels"`.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), appendix B.1.2

    Example:
    >>> MaskedPatch(target="pixels").arguments()
    {'mask_ratio': 0.5, 'target': 'pixels'}
    """

    mask_ratio: float = 0.5
    target: str = "mean_color"
    name: ClassVar[str] = "masked_patch"
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, ACCURACY)
    model_class: ClassVar = models.MaskedPatchPredictor
    config_class: ClassVar = models.MaskedPatchConfig

    def draw(self, seed: int, step: Any, batch_size: int) -> dict[str, Any]:
        """Draw the corrupted patches, and for each patch the index of the patch whose embedding it gets."""
        from keras_vit.data import seeds  # needs TensorFlow, which the step does not import

        sources, corrupted = seeds.patch_corruptions(
            seed, step, batch_size, self.config.num_patches, self.config.num_masked
        )
        return {"sources": sources, "corrupted": corrupted}

    def values(self, images: Any, batch: dict) -> tuple:
        """Return images, sources, corrupted patches and targets."""
        return images, batch["sources"], batch["corrupted"], self.targets(batch["image"])

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple[dict[str, Any], Any]:
        """Return losses, accuracies and the predictions for all patches."""
        images, sources, corrupted, targets = values
        predictions = ops.cast(model([images, sources], training=training), "float32")
        corrupted = ops.cast(corrupted, "float32")
        losses, right = (self.mean_of_masked(each, corrupted) for each in self.compare(predictions, targets))
        return {"loss": losses, "accuracy": right}, predictions

    def targets(self, images: Any) -> Any:
        """Return the targets for images of the pipeline, which are in [0, 255].

        Color classes are int32 `[b, N, predictions]`. Pixels are float32 `[b, N, pixels]` in [0, 1].
        """
        images = ops.cast(images, "float32") / 255.0
        if self.target == "pixels":
            return p.to_pixels(images, self.config.stride)
        cut = p.to_patches(images, self.config.stride)  # [b, N, height, width, c]
        return p.mean_color(cut) if self.target == "mean_color" else p.small_colors(cut)

    def compare(self, predictions: Any, targets: Any) -> tuple:
        """Return the loss of each patch and the fraction of its correct predictions, both `[b, N]`."""
        if self.target == "pixels":
            errors = predictions - targets
            close = ops.cast(ops.abs(errors) < 0.5 / p.LEVELS, "float32")
            return ops.mean(ops.square(errors), axis=-1), ops.mean(close, axis=-1)
        expected = ops.one_hot(targets, predictions.shape[-1], dtype="float32")  # [b, N, predictions, colors]
        losses = -ops.sum(expected * ops.log_softmax(predictions, axis=-1), axis=-1)
        right = ops.cast(ops.equal(ops.cast(ops.argmax(predictions, axis=-1), "int32"), targets), "float32")
        return ops.mean(losses, axis=-1), ops.mean(right, axis=-1)

    def show(self, batch: Mapping[str, np.ndarray], preprocess: Callable) -> Shown:
        """Return the input, the input with corrupted patches, and the input with predicted colors of these patches."""
        del preprocess
        config = self.config
        cut = p.to_patches(ops.convert_to_tensor(batch["image"]), config.stride)
        cut = ops.convert_to_numpy(cut).astype(np.float32)  # [n, N, height, width, c]
        sources, corrupted = batch["sources"], np.asarray(batch["corrupted"], bool)[..., None, None, None]
        moved = np.take_along_axis(cut, np.maximum(sources, 0)[..., None, None, None], axis=1)
        seen = np.where(sources[..., None, None, None] < 0, p.GRAY, moved)
        restored = np.where(corrupted, self._colors(batch["predictions"], cut.shape) * 255.0, cut)
        shown = {"input": cut, "corrupted": seen, "reconstruction": restored}
        return Shown(p.as_images(shown, config.grid))

    def _colors(self, predictions: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Convert predictions to patches of a shape `[n, N, height, width, c]`, in [0, 1]."""
        *_, height, width, channels = shape
        if self.target == "pixels":
            return predictions.reshape(shape)
        colors = p.class_colors(predictions.argmax(axis=-1), channels)  # [n, N, predictions, c]
        edge = round(colors.shape[2] ** 0.5)
        colors = colors.reshape(*predictions.shape[:2], edge, edge, channels)
        rows, columns = (np.arange(size) * edge // size for size in (height, width))
        return colors[:, :, rows][:, :, :, columns]
