"""Pictures for the tests, made on the fly."""

import functools
import io

import numpy as np
from PIL import Image


def smooth(height=40, width=50, seed=0):
    """uint8 [height, width, 3]: a few blurred patches, which JPEG keeps well."""
    rng = np.random.default_rng(seed)
    patches = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    return np.asarray(patches.resize((width, height), Image.Resampling.BICUBIC))


def encode(pixels, format="PNG", mode=None, **options):
    """The bytes of a file; `mode` is that of PIL, e.g. "CMYK"."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    (image.convert(mode) if mode else image).save(buffer, format, **options)
    return buffer.getvalue()


def folder(root, classes=("cat", "dog", "eel"), count=11, suffixes=("jpg", "png")):
    """Writes `count` images for each class; returns the root as a string."""
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(count):
            suffix = suffixes[i % len(suffixes)]
            (root / name / f"{i}.{suffix}").write_bytes(_content(i, label, suffix))
    return str(root)


@functools.cache
def _content(number, label, suffix):
    """The bytes of an image of a folder."""
    return encode(smooth(20 + number, 24, seed=100 * label + number), "JPEG" if suffix == "jpg" else "PNG")
