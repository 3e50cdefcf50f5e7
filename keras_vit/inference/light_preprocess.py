"""Preprocessing without TensorFlow, which needs several times as long, and as long again for its import.

The module supports the usual files (see `light_decode`) and the operations that recipes use for evaluation. The pixels
equal those of `keras_vit.data` bit for bit, because each formula sums in the order of TensorFlow's kernel. All other
files and operations need TensorFlow.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_vit.inference.light_decode import NotCovered, decode, import_pillow
from keras_vit.util import checks, literal_calls


def function_of(pp: str) -> Callable[[bytes], np.ndarray] | None:
    """Return the function from an encoded image to float32 `[H, W, C]`, or None if the string needs TensorFlow.

    The function raises `NotCovered` for a file that needs TensorFlow.
    """
    try:
        calls = literal_calls.parse(pp)
        steps = [call.create(OPERATIONS[call.name])[0] for call in calls]
    except (KeyError, NotCovered, ValueError):
        return None
    if not calls or calls[0].name != "decode" or any(call.name == "decode" for call in calls[1:]):
        return None

    def apply(encoded: bytes) -> np.ndarray:
        image: Any = encoded
        for step in steps:
            image = step(image)
        return image.astype(np.float32)

    return apply


def grayscale_to_rgb() -> Callable[[np.ndarray], np.ndarray]:
    """Repeat the channel of a gray image three times. RGB images stay unchanged."""
    return lambda image: image if image.shape[-1] == 3 else np.repeat(image, 3, axis=-1)


def resize(
    size: int | Sequence[int], method: str = "bilinear", antialias: bool = False, cast: bool = True
) -> Callable[[np.ndarray], np.ndarray]:
    """Resize to `size`, a side or (height, width)."""
    height, width = checks.size_pair("size", size)
    kernel = _kernel(method, antialias)
    return lambda image: _resize(image, height, width, kernel, cast)


def resize_small(
    smaller_size: int, method: str = "area", antialias: bool = False, cast: bool = True
) -> Callable[[np.ndarray], np.ndarray]:
    """Resize so that the smaller side is `smaller_size`."""
    kernel = _kernel(method, antialias)
    checks.positive_int("smaller_size", smaller_size)

    def apply(image: np.ndarray) -> np.ndarray:
        if method in PILLOW:
            height, width = (side * smaller_size // min(image.shape[:2]) for side in image.shape[:2])
            return _resize(image, height, width, kernel, cast)
        factor = np.float32(smaller_size) / np.float32(min(image.shape[:2]))
        height, width = np.round(np.array(image.shape[:2], np.float32) * factor).astype(int).tolist()
        return _resize(image, height, width, kernel, cast)

    return apply


Kernel = Callable[[np.ndarray, int, int], np.ndarray]


# Methods of Pillow -> the numbers of its filters.
PILLOW = {"pillow_lanczos": 1, "pillow_bilinear": 2, "pillow_bicubic": 3}


def _kernel(method: str, antialias: bool) -> Kernel:
    if method in PILLOW:
        return lambda image, height, width: _with_pillow(image, height, width, PILLOW[method])
    if method not in ("bilinear", "area"):
        raise NotCovered
    bilinear = _triangle if antialias else _bilinear
    return _area if method == "area" else bilinear


def _resize(image: np.ndarray, height: int, width: int, kernel: Kernel, cast: bool) -> np.ndarray:
    if image.shape[:2] == (height, width):
        return image
    resized = kernel(image, height, width)
    return resized.astype(image.dtype) if cast else resized


def _with_pillow(image: np.ndarray, height: int, width: int, resample: int) -> np.ndarray:
    """Resize one axis after the other, in the order of `keras_vit.data.pillow`, with any version of Pillow."""
    Image = import_pillow()
    if image.dtype != np.uint8:
        raise NotCovered
    old_height, old_width = image.shape[:2]
    is_height_first = height < old_height and old_height - height > 2 * (old_width - width)
    between = (old_width, height) if is_height_first else (width, old_height)
    pillow_image = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
    for size in (between, (width, height)):
        pillow_image = pillow_image.resize(size, Image.Resampling(resample))
    return np.asarray(pillow_image).reshape(height, width, -1)


def _bilinear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Interpolate between the four nearest pixels, at half-pixel centers."""
    top, bottom, y = _neighbors(image.shape[0], height)
    left, right, x = _neighbors(image.shape[1], width)
    x, y = x[:, None], y[:, None, None]
    rows = np.unique(np.concatenate([top, bottom]))  # a large image has many rows that are not needed
    image = image[rows].astype(np.float32)
    image = image[:, left] + (image[:, right] - image[:, left]) * x  # [rows, width, C]
    upper, lower = image[np.searchsorted(rows, top)], image[np.searchsorted(rows, bottom)]
    return upper + (lower - upper) * y


def _neighbors(size: int, target: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pixels before and after each sampling position, and the weight of the pixel after it."""
    scale = np.float32(size) / np.float32(target)
    position = (np.arange(target, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    floor = np.floor(position)
    before = np.maximum(floor, 0).astype(int)
    after = np.minimum(np.ceil(position), size - 1).astype(int)
    return before, after, position - floor


def _triangle(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Average the pixels around each sampling position, with weights that decrease linearly with the distance."""
    for size in (height, width):
        positions, weights = _weights(image.shape[0], size)
        total = np.zeros((size, *image.shape[1:]), np.float32)
        for position, weight in zip(positions, weights, strict=True):
            total += image[position] * weight[:, None, None]
        image = total.swapaxes(0, 1)
    return image


def _weights(size: int, target: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the input pixels of each sampling position, `[most, target]`, and their weights, in TensorFlow's steps."""
    half, one = np.float32(0.5), np.float32(1)
    scale = one / (np.float32(target) / np.float32(size))
    radius = max(scale, one)
    center = (np.arange(target, dtype=np.float32) + half) * scale
    first = np.maximum(np.ceil(center - radius - half), 0)
    last = np.minimum(np.floor(center + radius - half), size - 1)
    positions = first + np.arange(int((last - first).max()) + 1, dtype=np.float32)[:, None]  # [most, target]
    weights = np.maximum(one - np.abs((positions + half - center) * (one / radius)), 0) * (positions <= last)
    total = np.zeros(target, np.float32)
    for weight in weights:  # in order: float32 sums depend on it
        total += weight
    return np.minimum(positions, size - 1).astype(int), weights * (one / total)


def _area(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Average the input pixels under each output pixel. Input pixels that it covers in part have a smaller weight."""
    (rows, row_shares, y), (columns, column_shares, x) = (
        _shares(size, target) for size, target in zip(image.shape[:2], (height, width), strict=True)
    )
    image, total = image.astype(np.float32), np.zeros((height, width, image.shape[-1]), np.float32)
    # Float32 sums depend on the order. Sum in the order of TensorFlow's loops: along each row, then over the rows.
    for row, row_share in zip(rows, row_shares, strict=True):
        along = np.zeros_like(total)
        for column, share in zip(columns, column_shares, strict=True):
            along += image[row][:, column] * share[:, None]
        total += along * row_share[:, None, None]
    return total * (np.float32(1) / (y * x))


def _shares(size: int, target: int) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Return the input pixels under each output pixel, `[most, target]`, their shares, and the scale."""
    scale = np.float32(size) / np.float32(target)
    start = np.arange(target, dtype=np.float32) * scale
    end = np.arange(1, target + 1, dtype=np.float32) * scale
    first = np.floor(start).astype(int)
    most = int((np.ceil(end) - first).max())
    positions = first + np.arange(most)[:, None]  # [most, target]
    left, right = positions.astype(np.float32), positions.astype(np.float32) + 1
    inner = np.where(right > end, end - left, np.float32(1))
    shares = np.where(left < start, np.where(right > end, scale, right - start), inner)
    return np.minimum(positions, size - 1), np.where(left < end, shares, np.float32(0)).astype(np.float32), scale


def central_crop(
    crop_size: int | Sequence[int] | None = None, rounding: str = "down"
) -> Callable[[np.ndarray], np.ndarray]:
    """Crop the center to `crop_size`, a side or (height, width); None for the largest square."""
    checks.choice("rounding", rounding, ("down", "even"))
    size = checks.size_pair("crop_size", crop_size) if crop_size else None

    def apply(image: np.ndarray) -> np.ndarray:
        h, w = size or (min(image.shape[:2]),) * 2
        y, x = (image.shape[0] - h) // 2, (image.shape[1] - w) // 2
        if y < 0 or x < 0:
            raise NotCovered
        if rounding == "even":
            y, x = y + (image.shape[0] - h) % 2 * (y % 2), x + (image.shape[1] - w) % 2 * (x % 2)
        return image[y : y + h, x : x + w]

    return apply


def value_range(
    vmin: float = -1, vmax: float = 1, in_min: float = 0, in_max: float = 255.0, clip_values: bool = False
) -> Callable[[np.ndarray], np.ndarray]:
    """Map values from [in_min, in_max] to [vmin, vmax], as float32."""
    low, high = np.float32(in_min), np.float32(in_max)
    start, length = np.float32(vmin), np.float32(vmax - vmin)

    def apply(image: np.ndarray) -> np.ndarray:
        image = start + (image.astype(np.float32) - low) / (high - low) * length
        return np.clip(image, start, np.float32(vmax)) if clip_values else image

    return apply


def value_norm(
    mean: Sequence[float] = (0.485, 0.456, 0.406), std: Sequence[float] = (0.229, 0.224, 0.225)
) -> Callable[[np.ndarray], np.ndarray]:
    """Map 0..255 to 0..1, subtract `mean` and divide by `std`, as float32."""
    center, scale = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    return lambda image: (image.astype(np.float32) / np.float32(255) - center) / scale


def vgg_value_range(
    mean: Sequence[float] = (0.485 * 255, 0.456 * 255, 0.406 * 255),
    std: Sequence[float] = (0.229 * 255, 0.224 * 255, 0.225 * 255),
) -> Callable[[np.ndarray], np.ndarray]:
    """Subtract `mean` and divide by `std`, both in 0..255, as float32."""
    center, scale = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    return lambda image: (image.astype(np.float32) - center) / scale


OPERATIONS: dict[str, Callable[..., Callable]] = {
    operation.__name__: operation
    for operation in (
        decode,
        grayscale_to_rgb,
        resize,
        resize_small,
        central_crop,
        value_range,
        value_norm,
        vgg_value_range,
    )
}
