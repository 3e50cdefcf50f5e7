"""Example images and their encoded files, created by the tests."""

import functools
import io
import struct
import zlib

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


def exif_block(orientation):
    """The content of an Exif segment, in the order of bytes of big-endian machines."""
    return b"Exif\0\0MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def segment(marker, content):
    """A segment of a JPEG file."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def chunk(name, content):
    """A chunk of a PNG file."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


EXIF = segment(0xE1, exif_block(6))
XMP = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>")
ICC = segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(60_000))
ADOBE = segment(0xEE, b"Adobe\0d\0\0\0\0\1")
PHOTOSHOP = segment(0xED, b"Photoshop 3.0\0" + segment(0xE1, exif_block(3)))  # a preview with its own orientation
COMMENT = segment(0xFE, exif_block(3))
