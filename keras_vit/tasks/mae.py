"""Masked autoencoder: the model predicts masked patches from the visible patches."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_vit import models
from keras_vit.tasks import patches as p
from keras_vit.tasks.masked import MaskedTask
from keras_vit.tasks.task import LOSS, Shown
from keras_vit.util.metrics import Metric


@dataclasses.dataclass
class MAE(MaskedTask):
    """Masked autoencoder. It does not need labels.

    The loss is the mean squared error of the masked patches. The score is the explained variance: the fraction of the
    variance of the masked pixels that the model predicts. The values are images `[b, h, w, c]` and patch orders
    `[b, N]`.

    Attributes:
        mask_ratio: Fraction of the patches that are masked: the encoder does not receive them.
        normalize_pixels: Whether the target of each patch is normalized to mean 0 and variance 1.
        decoder_hidden_size: Width of the decoder's tokens.
        decoder_num_layers: Number of blocks in the decoder.
        decoder_num_heads: Number of attention heads per block of the decoder.

    References:
        - [Masked Autoencoders Are Scalable Vision Learners](https://arxiv.org/abs/2111.06377), section 3

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
    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, Metric("explained", unit="%"))
    model_class: ClassVar = models.MaskedAutoencoder
    config_class: ClassVar = models.MAEConfig

    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in super().arguments().items() if name != "normalize_pixels"}

    def draw(self, seed: int, step: Any, batch_size: int) -> dict[str, Any]:
        """Draw a random order of the patches of each image. The first patches in the order are visible."""
        from keras_vit.data import seeds  # needs TensorFlow, which the step does not import

        return {"order": seeds.patch_orders(seed, step, batch_size, self.config.num_patches)}

    def values(self, images: Any, batch: dict) -> tuple:
        """Return images and orders."""
        return images, batch["order"]

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple[dict[str, Any], Any]:
        """Return losses, explained variances, and predicted pixels of all patches, `[b, N, pixels]`."""
        images, order = values
        predictions = ops.cast(model([images, order], training=training), "float32")
        targets = self.targets(images)
        masked = ops.cast(self._is_masked(order), "float32")  # [b, N]
        losses = self.mean_of_masked(ops.mean(ops.square(predictions - targets), axis=-1), masked)
        mean = self.mean_of_masked(ops.mean(targets, axis=-1), masked)[:, None, None]
        variances = self.mean_of_masked(ops.mean(ops.square(targets - mean), axis=-1), masked)
        return {"loss": losses, "explained": 1.0 - losses / (variances + 1e-6)}, predictions

    def targets(self, images: Any) -> Any:
        """Return the pixels of all patches, float32 `[b, N, pixels]`, normalized if `normalize_pixels` is set."""
        pixels = p.to_pixels(ops.cast(images, "float32"), self.config.stride)
        if not self.normalize_pixels:
            return pixels
        mean, deviation = p.pixel_statistics(pixels)
        return (pixels - mean) / deviation

    def show(self, batch: Mapping[str, np.ndarray], preprocess: Callable) -> Shown:
        """Return the input, its visible patches, and its visible patches together with the predicted patches.

        Predictions of normalized pixels are rescaled with the mean and standard deviation of the input's patches.
        """
        channels, predictions = batch["image"].shape[-1], batch["predictions"]
        pixels = p.to_pixels(preprocess(ops.convert_to_tensor(batch["image"])), self.config.stride)
        if self.normalize_pixels:
            mean, deviation = (ops.convert_to_numpy(value) for value in p.pixel_statistics(pixels))
            predictions = predictions * deviation + mean
        masked = ops.convert_to_numpy(self._is_masked(ops.convert_to_tensor(batch["order"])))[..., None]
        pixels, back = ops.convert_to_numpy(pixels), p.invert(preprocess, channels)
        shape = (*pixels.shape[:2], *self.config.stride, channels)
        shown, restored = (back(x.reshape(shape)) for x in (pixels, np.where(masked, predictions, pixels)))
        visible = np.where(masked[..., None, None], p.GRAY, shown)
        found = {"input": shown, "visible": visible, "reconstruction": restored}
        return Shown(p.as_images(found, self.config.grid))

    def _is_masked(self, order):
        return ops.argsort(order, axis=1) >= self.config.num_visible  # [b, N]
