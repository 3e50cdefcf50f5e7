"""Pictures as users have them, compared with what the Python Imaging Library makes of them."""

import functools
import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_vit.data import images, preprocess
from tests import selection
from tests.data import pictures


@functools.cache
def decoder(**arguments):
    function = tf.function(lambda encoded: images.decode(encoded, **arguments), autograph=False)
    return function.get_concrete_function(tf.TensorSpec([], tf.string))


def decode(encoded, **arguments):
    return decoder(**arguments)(tf.constant(encoded)).numpy()


def by_pil(encoded, mode="RGB"):
    pixels = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(encoded))).convert(mode))
    return pixels[..., None] if pixels.ndim == 2 else pixels


RGBA = np.dstack([pictures.smooth(), np.full((40, 50), 128, np.uint8)])
FILES = {
    "palette": pictures.encode(pictures.smooth(), "PNG", "P"),
    "palette with alpha": pictures.encode(pictures.smooth(), "PNG", "P", transparency=0),
    "alpha": pictures.encode(RGBA),
    "gray and alpha": pictures.encode(RGBA, "PNG", "LA"),
    "one bit": pictures.encode(pictures.smooth(), "PNG", "1"),
    "grey": pictures.encode(pictures.smooth(), "PNG", "L"),
    "bmp": pictures.encode(pictures.smooth(), "BMP"),
    "bmp with alpha": pictures.encode(RGBA, "BMP"),
    "webp with alpha": pictures.encode(RGBA, "WEBP", lossless=True),
    "lossless webp": pictures.encode(pictures.smooth(), "WEBP", lossless=True),
    "gray jpeg": pictures.encode(pictures.smooth(), "JPEG", "L"),
    "progressive jpeg": pictures.encode(pictures.smooth(), "JPEG", progressive=True),
    "cmyk jpeg": pictures.encode(pictures.smooth(), "JPEG", "CMYK", quality=95),
}


@pytest.mark.parametrize(
    ("name", "channels"),
    selection.cases(
        [(name, channels) for channels in (3, 1) for name in FILES],
        lambda name, channels: channels == 3 or name in ("palette", "alpha", "cmyk jpeg"),
    ),
)
def test_formats(name, channels):
    expected = by_pil(FILES[name], "RGB" if channels == 3 else "L")
    result = decode(FILES[name], channels=channels)
    assert result.shape == (40, 50, channels) and result.dtype == np.uint8
    # JPEG decoders may round the transform and the colors differently; weights of gray are rounded elsewhere.
    tolerance = {"cmyk jpeg": 12, "progressive jpeg": 6, "gray jpeg": 3}.get(name, 0 if channels == 3 else 1)
    assert np.abs(result.astype(int) - expected).max() <= tolerance


@pytest.mark.parametrize("channels", [3, 1])
def test_16_bits_are_cut_to_the_upper_8(channels):
    values = np.random.default_rng(0).integers(0, 65536, (6, 7)).astype(np.uint16)
    result = decode(pictures.encode(values), channels=channels)
    np.testing.assert_array_equal(result, np.repeat((values >> 8).astype(np.uint8)[..., None], channels, -1))


@pytest.mark.parametrize(
    ("orientation", "first"),
    selection.cases(
        [(orientation, first) for first in ("exif", "jfif") for orientation in range(1, 9)],
        lambda orientation, first: first == "exif" or orientation == 6,
    ),
)
def test_photographs_are_turned_upright(orientation, first):
    exif = Image.Exif()
    exif[0x010F] = "A camera"  # other entries stand before the orientation
    exif[0x0112] = orientation
    exif[0x0131] = "and its software"
    encoded = pictures.encode(pictures.smooth(), "JPEG", exif=exif, quality=95)
    if first == "exif":  # cameras write no JFIF block; PIL writes one in front
        encoded = encoded[:2] + encoded[20:]
        assert encoded[6:10] == b"Exif"
    result = decode(encoded, precise=True)
    assert result.shape == ((50, 40, 3) if orientation >= 5 else (40, 50, 3))
    assert np.abs(result.astype(int) - by_pil(encoded)).max() <= 1
    as_stored = decode(pictures.encode(pictures.smooth(), "JPEG", quality=95), precise=True)
    np.testing.assert_array_equal(decode(encoded, precise=True, exif=False), as_stored)


def test_orientation_in_big_endian_and_in_a_crop():
    tiff = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    block = b"Exif\0\0" + tiff
    plain = pictures.encode(pictures.smooth(), "JPEG", quality=95)
    encoded = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + plain[20:]
    np.testing.assert_array_equal(decode(encoded), np.rot90(decode(plain), -1))
    crop = images.decode_and_crop(tf.constant(encoded), lambda shape: tf.constant([0, 0, 16, 32]))
    np.testing.assert_array_equal(
        crop, np.rot90(images.decode_and_crop(tf.constant(plain), lambda _: [0, 0, 16, 32]), -1)
    )


@pytest.mark.parametrize(("smallest", "ratio"), [(None, 1), (81, 1), (80, 2), (40, 4), (20, 8), (1, 8)])
def test_a_part_is_decoded_at_the_smallest_scale_that_keeps_enough_pixels(smallest, ratio):
    encoded = pictures.encode(pictures.smooth(240, 320), "JPEG", quality=95)
    window = tf.constant([40, 80, 160, 200])
    part = images.decode_and_crop(tf.constant(encoded), lambda shape: window, smallest=smallest).numpy()
    image = Image.open(io.BytesIO(encoded))
    image.draft("RGB", (320 // ratio, 240 // ratio))  # libjpeg's own scale
    y, x, height, width = (number // ratio for number in (40, 80, 160, 200))
    expected = np.asarray(image)[y : y + height, x : x + width]
    assert image.size == (320 // ratio, 240 // ratio) and part.shape == expected.shape
    assert np.abs(part.astype(int) - expected).mean() < 2  # TensorFlow's transform is the fast one


def test_scaled_decoding_keeps_the_pixels_of_the_crop():
    encoded = tf.constant(pictures.encode(pictures.smooth(240, 320), "JPEG", quality=95))
    for size, area in ((120, 100), ((8, 30), 20)):
        pp = f"decode_jpeg_and_inception_crop({size}, area_min={area}, ratio_min=1, ratio_max=1, scaled={{}})"
        exact, scaled = (
            preprocess.host_function(pp.format(flag))({"image": encoded}, seed=3)["image"].numpy().astype(int)
            for flag in (False, True)
        )
        assert not np.array_equal(exact, scaled)
        assert np.abs(exact - scaled).mean() < 4  # a smooth picture of a range of 255, moved by less than a pixel


def test_damaged_exif_blocks_do_no_harm():
    exif = Image.Exif()
    exif[0x0112] = 1
    encoded = pictures.encode(pictures.smooth(), "JPEG", exif=exif)
    start = encoded.index(b"Exif") + 6
    rng = np.random.default_rng(0)
    for first in (b"II*\0", b"MM\0*", rng.bytes(4)) * 20:  # 26 bytes are an entry and what surrounds it
        damaged = encoded[:start] + first + rng.bytes(22) + encoded[start + 26 :]
        assert sorted(decode(damaged).shape) == [3, 40, 50]


def header_of_png(width, height):
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + b"\0" * 64


def header_of_jpeg(width, height):
    encoded = bytearray(pictures.encode(pictures.smooth(), "JPEG"))
    start = encoded.index(b"\xff\xc0") + 5
    encoded[start : start + 4] = struct.pack(">HH", height, width)
    return bytes(encoded)


@pytest.mark.parametrize("header", [header_of_png, header_of_jpeg])
@pytest.mark.parametrize("pp", ["decode", "decode_jpeg_and_inception_crop(8)"])
def test_decompression_bombs_are_refused_by_their_header(header, pp):
    function = preprocess.host_function(pp)
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than 178,956,970 pixels"):
        function({"image": tf.constant(header(20_000, 20_000))})
    with pytest.raises(tf.errors.InvalidArgumentError, match="more than 1,000 pixels"):
        preprocess.host_function("decode(max_pixels=1000)")({"image": tf.constant(header(100, 11))})


@pytest.mark.parametrize("content", [b"", b"\xff", b"\xff\xd8\xff", b"\x89PNG", b"hello", b"GIF89a", b"BM"])
def test_what_is_no_picture_is_an_error_and_no_crash(content):
    for pp in ("decode", "decode(channels=1)", "decode_jpeg_and_inception_crop(8)"):
        with pytest.raises(tf.errors.InvalidArgumentError):
            preprocess.host_function(pp)({"image": tf.constant(content)})


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_truncated_files_are_errors(format):
    encoded = pictures.encode(pictures.smooth(), format)
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode(encoded[: len(encoded) // 2])


def test_precise_is_the_accurate_transform():
    encoded = pictures.encode(pictures.smooth(80, 80), "JPEG", quality=90, subsampling=0)
    precise = np.abs(decode(encoded, precise=True).astype(int) - by_pil(encoded))
    assert precise.max() <= 1
    assert np.abs(decode(pictures.encode(pictures.smooth()), precise=True).astype(int) - pictures.smooth()).max() == 0
