"""Operations of preprocessing strings that decode, crop, pad and mirror images."""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_vit.data import images
from keras_vit.data.parse import GEOMETRIC, IGNORED, changed, operation
from keras_vit.data.scaling import NEAREST, resize
from keras_vit.util import checks


@operation()
def decode(
    channels: int = 3, precise: bool = False, exif: bool = True, max_pixels: int = images.MAX_PIXELS
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Decode an image to 3 or 1 `channels`. Arrays are only converted between RGB and gray.

    `precise` decodes JPEG as PIL and OpenCV do. `exif` applies the Exif orientation, which big_vision ignores.
    """
    checks.choice("channels", channels, (3, 1))

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
    """Repeat the channel of a gray image three times. RGB images are not changed."""
    return lambda image: image if image.shape[-1] == 3 else tf.image.grayscale_to_rgb(image)


@operation(GEOMETRIC, random=True, name="inception_crop", mask=NEAREST)
@dataclasses.dataclass(frozen=True)
class InceptionCrop:
    """Cut out a random crop with a random area (in percent) and aspect ratio (width over height), and resize it.

    References:
        https://arxiv.org/abs/1409.4842
    """

    size: int | Sequence[int] | None = None
    area_min: float = 5
    area_max: float = 100
    ratio_min: float = 0.75
    ratio_max: float = 1.33
    method: str = "bilinear"
    antialias: bool = False
    cast: bool = True

    def __post_init__(self):
        area, ratio = (self.area_min, self.area_max), (self.ratio_min, self.ratio_max)
        if not 0 < area[0] <= area[1] <= 100:
            raise ValueError(f"0 < area_min <= area_max <= 100 is expected, in percent. Received: {area}.")
        if not 0 < ratio[0] <= ratio[1]:
            raise ValueError(f"0 < ratio_min <= ratio_max is expected. Received: {ratio}.")
        self._resize()

    def __call__(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        y, x, height, width = tf.unstack(self._window(tf.shape(image), seed))
        crop = image[y : y + height, x : x + width]
        crop.set_shape([None, None, image.shape[-1]])
        return self._resize()(crop)

    def _resize(self) -> Callable[[tf.Tensor], tf.Tensor]:
        return resize(self.size, self.method, self.antialias, self.cast) if self.size else lambda image: image

    def _window(self, shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return (y, x, height, width) of a random crop of an image with this shape."""
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.zeros([0, 0, 4], tf.float32),
            seed,
            min_object_covered=0.0,
            aspect_ratio_range=(self.ratio_min, self.ratio_max),
            area_range=(self.area_min / 100, self.area_max / 100),
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([begin[:2], size[:2]], axis=0)


def _crop_of_masks(factory: Callable, arguments: dict) -> Callable:
    names = [field.name for field in dataclasses.fields(InceptionCrop)]
    return NEAREST(InceptionCrop, {name: arguments[name] for name in names})


@operation(GEOMETRIC, random=True, name="decode_jpeg_and_inception_crop", mask=_crop_of_masks)
@dataclasses.dataclass(frozen=True)
class DecodeJpegAndInceptionCrop(InceptionCrop):
    """Faster `decode|inception_crop(size)` that decodes only the crop of a JPEG. Other formats are decoded whole.

    `scaled` decodes a JPEG at 1/2, 1/4 or 1/8 of its size if the crop still has at least `size` pixels per side. This
    smooths the pixels. Evaluate with `resize(size, antialias=True)`; otherwise, fine textures are recognized less well.
    `scaled` reduces the time for an image of 12 megapixels to 60%. It saves no time for an image of 500 x 375 pixels.
    """

    exif: bool = True
    max_pixels: int = images.MAX_PIXELS
    scaled: bool = False

    def __call__(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        if image.dtype != tf.string:
            return super().__call__(decode()(image), seed)
        crop = images.decode_and_crop(
            image, lambda shape: self._window(shape, seed), self.exif, self.max_pixels, self._smallest()
        )
        return self._resize()(crop)

    def _smallest(self) -> int | None:
        """Return the number of pixels that each side of a crop must keep, or None to decode at full size."""
        return max(checks.size_pair("size", self.size)) if self.scaled and self.size else None


@operation(GEOMETRIC)
def central_crop(
    crop_size: int | Sequence[int] | None = None, rounding: str = "down"
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Cut out the center: `crop_size` (a side or (height, width)), or the largest square.

    Half-pixel offsets are rounded down or, with `rounding="even"`, to the nearest even number, as in torchvision.
    """
    checks.choice("rounding", rounding, ("down", "even"))
    size = checks.size_pair("crop_size", crop_size) if crop_size else None

    def apply(image):
        height, width = tf.shape(image)[0], tf.shape(image)[1]
        h, w = size or (tf.minimum(height, width),) * 2
        y, x = (height - h) // 2, (width - w) // 2
        if rounding == "even":  # an offset of 1.5 becomes 2, and 0.5 becomes 0
            y, x = y + (height - h) % 2 * (y % 2), x + (width - w) % 2 * (x % 2)
        return tf.image.crop_to_bounding_box(image, y, x, h, w)

    return apply


@operation(GEOMETRIC, random=True)
def random_crop(crop_size: int | Sequence[int]) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Cut out `crop_size` (a side or (height, width)) at a random position."""
    size = checks.size_pair("crop_size", crop_size)
    return lambda image, seed: tf.image.stateless_random_crop(image, (*size, image.shape[-1]), seed)


@operation(GEOMETRIC, mask=changed(value=IGNORED))
def pad(padding: int | Sequence[int], mode: str = "constant", value: int = 0) -> Callable[[tf.Tensor], tf.Tensor]:
    """Add a border of `padding` pixels or (vertical, horizontal), e.g. `pad(4)|random_crop(32)` for CIFAR."""
    vertical, horizontal = (padding, padding) if isinstance(padding, int) else tuple(padding)
    if min(vertical, horizontal) < 0:
        raise ValueError(f"`padding` must not be negative. Received: {padding!r}.")
    checks.choice("mode", mode, ("constant", "reflect", "symmetric"))
    borders = [[vertical, vertical], [horizontal, horizontal], [0, 0]]
    return lambda image: tf.pad(image, borders, mode.upper(), constant_values=tf.cast(value, image.dtype))


@operation(GEOMETRIC, random=True)
def flip_lr(probability: float = 0.5) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Mirror the image horizontally at random."""
    if not 0 <= probability <= 1:
        raise ValueError(f"`probability` must be in [0, 1]. Received: {probability!r}.")

    def apply(image, seed):
        flip = tf.random.stateless_uniform([], seed) < probability
        return tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)

    return apply
