"""Sizes of images from their headers, and files whose decoding would need more memory than the header states."""

import struct

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import headers, images, preprocess
from tests import forked
from tests.data import example_images

count = tf.function(headers.pixel_count, input_signature=[tf.TensorSpec([], tf.string)], autograph=False)


def pixels(content):
    return int(count(tf.constant(content)))


TRANSPARENT = np.dstack([example_images.smooth(), np.arange(2000, dtype=np.uint8).reshape(40, 50)])
FILES = {
    "jpeg": example_images.encode(example_images.smooth(), "JPEG"),
    "progressive jpeg": example_images.encode(example_images.smooth(), "JPEG", progressive=True),
    "png": example_images.encode(example_images.smooth()),
    "bmp": example_images.encode(example_images.smooth(), "BMP"),
    "webp": example_images.encode(example_images.smooth(), "WEBP"),
    "webp, lossless": example_images.encode(example_images.smooth(), "WEBP", lossless=True),
    "webp, extended": example_images.encode(
        example_images.smooth(), "WEBP", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"
    ),
}

GIF = example_images.encode(example_images.smooth(), "GIF")
WAVE = b"RIFF\x24\0\0\0WAVEfmt "  # a sound, in the container of WebP


@pytest.mark.parametrize("name", FILES)
def test_pixel_count_is_read_from_the_header_of_every_format(name):
    assert pixels(FILES[name]) == 40 * 50


def test_pixel_count_of_a_webp_with_transparency_is_read():
    content = example_images.encode(TRANSPARENT, "WEBP", quality=50)
    assert content[12:16] == b"VP8X" == FILES["webp, extended"][12:16]
    assert pixels(content) == 40 * 50


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("pp", ["decode(max_pixels={})", "decode_jpeg_and_inception_crop(8, max_pixels={})"])
def test_the_limit_applies_to_every_format(name, pp):
    content = {"image": tf.constant(FILES[name])}
    preprocess.host_function(pp.format(2000))(content)
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than 1,999 pixels"):
        preprocess.host_function(pp.format(1999))(content)


def test_top_down_bmp_is_decoded():
    content = bytearray(FILES["bmp"])
    content[22:26] = struct.pack("<i", -40)
    assert pixels(bytes(content)) == 2000
    assert images.decode(tf.constant(bytes(content))).shape == (40, 50, 3)


@pytest.mark.slow
def test_the_count_is_traced_once_for_all_pipelines():
    traces = []
    for size in (4, 5):
        decode = tf.function(preprocess.single_image(f"decode|resize({size})"), autograph=False)
        decode.get_concrete_function(tf.TensorSpec([], tf.string))
        traces.append(headers._pixels_of_others.experimental_get_tracing_count())
    assert traces[0] == traces[1]


@pytest.mark.parametrize("content", [b"", b"plain text", b"GIF89a", b"BM", b"\x89PNG", b"RIFF....WEBP", b"\xff\x0a"])
def test_files_that_are_not_images_have_a_small_pixel_count(content):
    assert pixels(content) <= 64


def test_a_webp_with_a_wrong_canvas_is_rejected():
    content = bytearray(example_images.encode(np.zeros((400, 600, 4), np.uint8), "WEBP", quality=50))
    assert content[12:16] == b"VP8X"
    content[24:30] = b"\0" * 6  # a canvas of one pixel
    with pytest.raises(tf.errors.InvalidArgumentError):
        images.decode(tf.constant(bytes(content)))


def test_bits_next_to_the_size_of_a_webp_are_ignored():
    """The scale of a lossy image, and the flag of transparency of a lossless image."""
    content = bytearray(FILES["webp"])
    assert content[12:16] == b"VP8 "
    content[27] |= 0x40
    content[29] |= 0x80
    assert pixels(bytes(content)) == 40 * 50
    lossless = example_images.encode(TRANSPARENT, "WEBP", lossless=True)
    assert lossless[12:16] == b"VP8L" and lossless[24] & 0x10
    assert pixels(lossless) == 40 * 50


def jpeg_of_scans(extra):
    """A progressive JPEG whose last scan is repeated `extra` times."""
    content = FILES["progressive jpeg"]
    start = content.rindex(b"\xff\xda")
    return content[:-2] + content[start:-2] * extra + b"\xff\xd9"


def test_jpeg_files_of_hundreds_of_scans_are_refused_in_untrusted_input():
    usual = int(headers.count_scans(tf.constant(FILES["progressive jpeg"])))
    assert 5 < usual < 20
    most, more = jpeg_of_scans(500 - usual), jpeg_of_scans(501 - usual)
    assert headers.check(tf.constant(most), 2000, untrusted=True) == most
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than 500 scans"):
        headers.check(tf.constant(more), 2000, untrusted=True)


@pytest.mark.parametrize("content", [b"plain text", GIF, b"\xff\x0a" + bytes(range(12)), WAVE, b""])
def test_other_formats_are_refused_in_untrusted_input(content):
    with pytest.raises(tf.errors.InvalidArgumentError, match="JPEG, PNG, BMP or WebP"):
        headers.check(tf.constant(content), 10**6, untrusted=True)


@pytest.mark.parametrize("content", [GIF, b"\xff\x0a" + bytes(100), b"\0\0\0\x0cJXL \x0d\x0a\x87\x0a" + bytes(100)])
def test_gif_and_jpeg_xl_are_refused_everywhere(content):
    """Their frames may be larger than their headers state, so that no check bounds the memory of decoding."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="JPEG, PNG, BMP or WebP"):
        images.decode(tf.constant(content))


@pytest.mark.slow
def test_decompression_bombs_are_refused_without_allocating_memory():
    """In a separate process, whose peak memory is measured and limited."""
    code, output = forked.run("tests.data.bombs")
    assert code == 0, output
