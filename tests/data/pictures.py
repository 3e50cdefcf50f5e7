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


def one_color_gif(sizes, screen=(1, 1)):
    """A valid GIF of frames of one color, which LZW packs a thousandfold.

    Args:
        sizes: (height, width) of each frame.
        screen: (height, width) that the header tells of.
    """
    height, width = screen
    content = b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little") + b"\x80\0\0" + b"\0" * 6
    for height, width in sizes:
        content += b",\0\0\0\0" + width.to_bytes(2, "little") + height.to_bytes(2, "little") + b"\0\x02"
        data = _zeros_by_lzw(height * width)
        blocks = [data[i : i + 255] for i in range(0, len(data), 255)]
        content += b"".join(bytes([len(block)]) + block for block in blocks) + b"\0"
    return content + b";"


def _zeros_by_lzw(count):
    """The LZW codes of `count` zeros, for a GIF of two bits per pixel."""
    bits, filled, data = 0, 0, bytearray()
    clear, end, width = 4, 5, 3

    def put(code):
        nonlocal bits, filled
        bits |= code << filled
        filled += width
        while filled >= 8:
            data.append(bits & 0xFF)
            bits >>= 8
            filled -= 8

    while count > 0:
        put(clear)
        width = 3
        put(0)
        count -= 1
        for code in range(6, 4095):  # stands for code - 4 zeros, and is as wide as the table is large by now
            width = max(3, code.bit_length())
            if count <= 0:
                break
            put(min(code, count + 4) if count > 1 else 0)
            count -= min(code - 4, count) if count > 1 else 1
        else:
            width = 12
    put(end)
    width = 8
    put(0)
    return bytes(data)
