"""Operations of preprocessing strings that decode images and set the number of channels."""

from collections.abc import Callable

import tensorflow as tf

from keras_vit import _checks
from keras_vit.data import images
from keras_vit.data.parse import operation


@operation()
def decode(
    channels: int = 3, precise: bool = False, exif: bool = True, max_pixels: int = images.MAX_PIXELS
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Decode an image; an array passes, with 3 or 1 `channels`: gray becomes RGB, and RGB gray.

    `precise` decodes JPEG as PIL and OpenCV do; `exif` turns images upright, which big_vision does not.
    """
    _checks.choice("channels", channels, (3, 1))

    def apply(image):
        if image.dtype == tf.string:
            return images.decode(image, channels, precise, exif, max_pixels)
        if image.shape[-1] == channels:
            return image
        if image.shape[-1] not in (1, 3):
            raise ValueError(f"decode(channels={channels}) needs images of 1 or 3 channels. Received: {image.shape}.")
        return tf.image.grayscale_to_rgb(image) if channels == 3 else tf.image.rgb_to_grayscale(image)

    return apply


@operation()
def grayscale_to_rgb() -> Callable[[tf.Tensor], tf.Tensor]:
    """Repeat the channel of a gray image three times. RGB passes."""
    return lambda image: image if image.shape[-1] == 3 else tf.image.grayscale_to_rgb(image)
