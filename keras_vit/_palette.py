"""Colors of classes, which are the same in every file and figure."""

import colorsys

import numpy as np

# Gray for class 0, which is often the background, and Okabe and Ito's colors, which color-blind people can distinguish.
_FIRST = [
    *[(120, 120, 120), (230, 159, 0), (86, 180, 233), (0, 158, 115)],
    *[(240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167)],
]


def palette(num_classes: int) -> np.ndarray:
    """Return the color of each class, uint8 `[num_classes, 3]`. Class 255, used for ignored pixels, is white.

    After the first eight colors, the hues are spaced by the golden angle. The colors repeat after 256 classes.
    """
    others = [
        colorsys.hsv_to_rgb(0.618034 * number % 1.0, (0.85, 0.5)[number % 2], (0.95, 0.75, 0.55)[number % 3])
        for number in range(255 - len(_FIRST))
    ]
    colors = np.concatenate([_FIRST, np.round(255 * np.array(others)), [[255, 255, 255]]]).astype(np.uint8)
    return colors[np.arange(num_classes) % 256]


def overlay(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Overlay images, uint8 `[..., H, W, 1 or 3]`, with the half-transparent colors of their masks `[..., H, W]`.

    The result is uint8 `[..., H, W, 3]`. Pixels with a negative class do not change.
    """
    colors = palette(int(mask.max(initial=0)) + 1)[mask]  # [..., H, W, 3]
    return np.where(mask[..., None] < 0, pixels, (pixels.astype(np.uint16) + colors) // 2).astype(np.uint8)
