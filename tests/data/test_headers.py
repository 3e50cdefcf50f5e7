"""Sizes of images from their headers, and files that would claim more memory than they say."""

import struct
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit.data import headers, images, preprocess
from tests.data import pictures

count = tf.function(headers.pixel_count, input_signature=[tf.TensorSpec([], tf.string)], autograph=False)


def pixels(content):
    return int(count(tf.constant(content)))


TRANSPARENT = np.dstack([pictures.smooth(), np.arange(2000, dtype=np.uint8).reshape(40, 50)])
FILES = {
    "jpeg": pictures.encode(pictures.smooth(), "JPEG"),
    "progressive jpeg": pictures.encode(pictures.smooth(), "JPEG", progressive=True),
    "png": pictures.encode(pictures.smooth()),
    "gif": pictures.encode(pictures.smooth(), "GIF"),
    "bmp": pictures.encode(pictures.smooth(), "BMP"),
    "webp": pictures.encode(pictures.smooth(), "WEBP"),
    "webp, lossless": pictures.encode(pictures.smooth(), "WEBP", lossless=True),
    "webp, extended": pictures.encode(pictures.smooth(), "WEBP", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"),
}


@pytest.mark.parametrize("name", FILES)
def test_pixels_of_every_format(name):
    assert pixels(FILES[name]) == 40 * 50


def test_pixels_of_a_webp_with_transparency():
    content = pictures.encode(TRANSPARENT, "WEBP", quality=50)
    assert content[12:16] == b"VP8X" == FILES["webp, extended"][12:16]
    assert pixels(content) == 40 * 50


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("pp", ["decode(max_pixels={})", "decode_jpeg_and_inception_crop(8, max_pixels={})"])
def test_the_limit_holds_for_every_format(name, pp):
    content = {"image": tf.constant(FILES[name])}
    preprocess.host_function(pp.format(2000))(content)
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than 1,999 pixels"):
        preprocess.host_function(pp.format(1999))(content)


def test_bmp_from_the_top():
    content = bytearray(FILES["bmp"])
    content[22:26] = struct.pack("<i", -40)
    assert pixels(bytes(content)) == 2000
    assert images.decode(tf.constant(bytes(content))).shape == (40, 50, 3)


def test_gif_counts_every_frame():
    assert pixels(pictures.one_color_gif([(8, 8), (30, 20), (3, 1)])) == 8 * 8 + 30 * 20 + 3
    # The decoder makes an array as high and as wide as any frame.
    assert pixels(pictures.one_color_gif([(8, 8), (1, 3000), (2000, 1)])) == 2000 * 3000
    assert pixels(pictures.one_color_gif([(8, 8)], screen=(60, 50))) == 3000


def test_gif_of_other_software():
    rng = np.random.default_rng(0)
    frames = [
        Image.fromarray(rng.integers(0, 256, (70, 90, 3), dtype=np.uint8)).quantize(dither=Image.Dither.NONE)
        for _ in range(12)
    ]
    content = pictures.encode(
        frames[0], "GIF", save_all=True, append_images=frames[1:], loop=0, disposal=2, comment=b"," * 600
    )
    assert len(content) > 20_000  # with colors of each frame
    assert pixels(content) == 12 * 70 * 90


def test_the_count_is_traced_once_for_all_pipelines():
    """Its many operations were traced again in every pipeline, which took half a second each."""
    traces = []
    for size in (4, 5):
        decode = tf.function(preprocess.single_image(f"decode|resize({size})"), autograph=False)
        decode.get_concrete_function(tf.TensorSpec([], tf.string))
        traces.append(headers._pixels_of_others.experimental_get_tracing_count())
    assert traces[0] == traces[1]


def gif_by_the_specification(content):
    """Frames of a GIF, read one block after the other."""
    table = lambda flags: 3 * 2 ** (flags % 8 + 1) if flags & 0x80 else 0  # noqa: E731
    width, height = struct.unpack("<HH", content[6:10])
    position, sizes = 13 + table(content[10]), []
    content += b"\0" * 1000
    while content[position] in (0x2C, 0x21):
        if content[position] == 0x2C:
            sizes.append(struct.unpack("<HH", content[position + 5 : position + 9]))
            position += 11 + table(content[position + 9])
        else:
            position += 2
        while content[position]:
            position += 1 + content[position]
        position += 1
    sums = sum(w * h for w, h in sizes)
    return max(sums, max((w for w, _ in sizes), default=0) * max((h for _, h in sizes), default=0), width * height)


@pytest.mark.slow
def test_gif_of_any_blocks():
    """Chains of blocks of all lengths, and damaged ones, against the specification read by a loop."""
    rng = np.random.default_rng(1)
    for number in range(60):
        content = b"GIF89a" + rng.bytes(4) + bytes([0x80 | rng.integers(8), 0, 0])
        content += rng.bytes(3 * 2 ** (content[10] % 8 + 1))
        for _ in range(rng.integers(0, 40)):
            longest = rng.choice([2, 30, 256])
            if rng.random() < 0.5:
                flags = int(rng.choice([0, 0x80])) | int(rng.integers(8))
                content += b"," + rng.bytes(8) + bytes([flags])
                content += rng.bytes(3 * 2 ** (flags % 8 + 1) if flags & 0x80 else 0) + b"\x08"
            else:
                content += b"!" + rng.bytes(1)
            for length in rng.integers(1, longest, rng.integers(0, 400)).tolist():
                content += bytes([length]) + rng.bytes(length)
            content += b"\0"
        if number % 3 == 0:
            content = content[: rng.integers(13, len(content) + 1)]
        assert pixels(content) == gif_by_the_specification(content), number


@pytest.mark.parametrize("content", [b"", b"plain text", b"GIF89a", b"BM", b"\x89PNG", b"RIFF....WEBP", b"\xff\x0a"])
def test_what_is_no_image_has_hardly_any_pixels(content):
    assert pixels(content) <= 64


def test_gif_of_too_many_blocks_is_refused():
    content = FILES["gif"][:-1] + b"!\1" + b"\1\1" * headers.MAX_BLOCKS + b"\0;"
    with pytest.raises(tf.errors.InvalidArgumentError, match="pixels"):
        images.decode(tf.constant(content))


def test_a_webp_that_lies_about_its_canvas_is_refused():
    content = bytearray(pictures.encode(np.zeros((400, 600, 4), np.uint8), "WEBP", quality=50))
    assert content[12:16] == b"VP8X"
    content[24:30] = b"\0" * 6  # a canvas of one pixel
    with pytest.raises(tf.errors.InvalidArgumentError):
        images.decode(tf.constant(bytes(content)))


def jpeg_of_scans(extra):
    """A progressive JPEG whose last scan is repeated `extra` times."""
    content = FILES["progressive jpeg"]
    start = content.rindex(b"\xff\xda")
    return content[:-2] + content[start:-2] * extra + b"\xff\xd9"


def test_jpeg_files_of_hundreds_of_scans_are_refused_where_strangers_send_them():
    usual, many = FILES["progressive jpeg"], jpeg_of_scans(headers.MAX_SCANS)
    assert 5 < int(headers.count_scans(tf.constant(usual))) < 20
    assert headers.check(tf.constant(usual), 2000, untrusted=True) == usual
    with pytest.raises(tf.errors.InvalidArgumentError, match="scans"):
        headers.check(tf.constant(many), 2000, untrusted=True)


@pytest.mark.parametrize("content", [b"plain text", FILES["gif"], b"\xff\x0a" + bytes(range(12)), b""])
def test_other_formats_are_refused_where_strangers_send_them(content):
    with pytest.raises(tf.errors.InvalidArgumentError, match="JPEG, PNG, BMP or WebP"):
        headers.check(tf.constant(content), 10**6, untrusted=True)


@pytest.mark.parametrize("magic", [b"\xff\x0a", b"\0\0\0\x0cJXL \x0d\x0a\x87\x0a"])
def test_jpeg_xl_is_refused_everywhere(magic):
    """Its frames may be larger than its header states, so that no check bounds the memory of decoding."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="JPEG, PNG, GIF, BMP or WebP"):
        images.decode(tf.constant(magic + bytes(range(100))))


@pytest.mark.slow
def test_bombs_are_refused_without_their_memory():
    """In a process of its own, whose peak memory is measured and limited."""
    process = subprocess.run([sys.executable, "-m", "tests.data.bombs"], capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stdout + process.stderr
