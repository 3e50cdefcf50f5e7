"""Decoding of real-world image files, compared with Pillow."""

import functools
import io
import struct

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from keras_vit.data import images, preprocess
from tests import selection
from tests.data import example_images


@functools.cache
def decoder(**arguments):
    function = tf.function(lambda encoded: images.decode(encoded, **arguments), autograph=False)
    return function.get_concrete_function(tf.TensorSpec([], tf.string))


def decode(encoded, **arguments):
    return decoder(**arguments)(tf.constant(encoded)).numpy()


def by_pil(encoded, mode="RGB"):
    pixels = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(encoded))).convert(mode))
    return pixels[..., None] if pixels.ndim == 2 else pixels


RGBA = np.dstack([example_images.smooth(), np.full((40, 50), 128, np.uint8)])
FILES = {
    "palette": example_images.encode(example_images.smooth(), "PNG", "P"),
    "palette with alpha": example_images.encode(example_images.smooth(), "PNG", "P", transparency=0),
    "alpha": example_images.encode(RGBA),
    "gray and alpha": example_images.encode(RGBA, "PNG", "LA"),
    "one bit": example_images.encode(example_images.smooth(), "PNG", "1"),
    "grey": example_images.encode(example_images.smooth(), "PNG", "L"),
    "bmp": example_images.encode(example_images.smooth(), "BMP"),
    "bmp with alpha": example_images.encode(RGBA, "BMP"),
    "webp with alpha": example_images.encode(RGBA, "WEBP", lossless=True),
    "lossless webp": example_images.encode(example_images.smooth(), "WEBP", lossless=True),
    "gray jpeg": example_images.encode(example_images.smooth(), "JPEG", "L"),
    "progressive jpeg": example_images.encode(example_images.smooth(), "JPEG", progressive=True),
    "cmyk jpeg": example_images.encode(example_images.smooth(), "JPEG", "CMYK", quality=95),
}


@pytest.mark.parametrize(
    ("name", "channels"),
    selection.cases(
        [(name, channels) for channels in (3, 1) for name in FILES],
        lambda name, channels: channels == 3 or name in ("palette", "alpha", "cmyk jpeg"),
    ),
)
def test_every_format_is_decoded_as_pillow_does(name, channels):
    expected = by_pil(FILES[name], "RGB" if channels == 3 else "L")
    result = decode(FILES[name], channels=channels)
    assert result.shape == (40, 50, channels) and result.dtype == np.uint8
    # JPEG decoders may round the transform and the colors differently; weights of gray are rounded elsewhere.
    tolerance = {"cmyk jpeg": 12, "progressive jpeg": 6, "gray jpeg": 3}.get(name, 0 if channels == 3 else 1)
    assert np.abs(result.astype(int) - expected).max() <= tolerance


@pytest.mark.slow
@pytest.mark.parametrize("channels", [3, 4])
def test_first_frame_of_an_animation_is_decoded(channels):
    """TensorFlow writes past the end of the memory of an opaque animation, and may end the process."""
    noise = np.random.default_rng(0).integers(0, 256, (3, 16, 32, channels), np.uint8)
    frames = [Image.fromarray(frame) for frame in noise]
    encoded = example_images.encode(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert encoded[12:16] == b"VP8X" and encoded[20] & 2
    expected = by_pil(encoded)
    np.testing.assert_array_equal(decode(encoded), expected)
    np.testing.assert_array_equal(decode(encoded, precise=True), expected)
    assert np.abs(decode(encoded, channels=1).astype(int) - by_pil(encoded, "L")).max() <= 1
    crop = images.decode_and_crop(tf.constant(encoded), lambda shape: tf.constant([2, 3, 5, 7]))
    np.testing.assert_array_equal(crop, expected[2:7, 3:10])


def bmp(bits, rows, palette=b"", compression=0, masks=b""):
    """A BMP file of `rows`, the bottom row first, each padded to four bytes."""
    start = 54 + len(masks) + len(palette)
    fields = 40, 8 * rows.shape[1] // bits, len(rows), 1, bits, compression, rows.size, 0, 0, 0, 0
    content = struct.pack("<IiiHHIIiiII", *fields) + masks + palette + rows.tobytes()
    return b"BM" + struct.pack("<IHHI", 14 + len(content), 0, 0, start) + content


NOISE = np.random.default_rng(0).integers(0, 256, (6, 24), np.uint8)
BGR_MASKS, RGB_MASKS = (struct.pack("<III", *masks) for masks in ((0xFF0000, 0xFF00, 0xFF), (0xFF, 0xFF00, 0xFF0000)))


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize(
    "encoded",
    [
        bmp(8, NOISE, np.random.default_rng(1).bytes(1024)),
        bmp(8, NOISE % 6, np.random.default_rng(1).bytes(4 * 6)),
        bmp(8, NOISE, np.repeat(np.arange(255, -1, -1, dtype=np.uint8), 4).tobytes()),  # white is 0
        bmp(24, NOISE),
        bmp(32, NOISE),
        bmp(32, NOISE, compression=3, masks=BGR_MASKS),
    ],
    ids=["256 colors", "6 colors", "negative", "24 bits", "32 bits", "32 bits with masks"],
)
def test_colors_of_bmp_match_pillow(encoded, channels):
    difference = decode(encoded, channels=channels).astype(int) - by_pil(encoded, "RGB" if channels == 3 else "L")
    assert np.abs(difference).max() <= (0 if channels == 3 else 1)


@pytest.mark.parametrize(
    "encoded",
    [
        bmp(8, NOISE, bytes(1024), compression=1),
        bmp(32, NOISE, compression=3, masks=RGB_MASKS),
        bmp(4, NOISE, bytes(64)),
        bmp(16, NOISE),
        bmp(8, NOISE, bytes(1024))[:14] + b"\xff\xff\0\0" + bmp(8, NOISE, bytes(1024))[18:],
    ],
    ids=["run lengths", "another order of channels", "4 bits", "16 bits", "a header beyond the pixels"],
)
def test_bmp_of_other_kinds_is_refused(encoded):
    with pytest.raises(tf.errors.InvalidArgumentError, match="BMP of 8, 24 or 32 bits"):
        decode(encoded)


@pytest.mark.parametrize("channels", [3, 1])
def test_16_bits_are_cut_to_the_upper_8(channels):
    values = np.random.default_rng(0).integers(0, 65536, (6, 7)).astype(np.uint16)
    result = decode(example_images.encode(values), channels=channels)
    np.testing.assert_array_equal(result, np.repeat((values >> 8).astype(np.uint8)[..., None], channels, -1))


@pytest.mark.parametrize(
    ("orientation", "first"),
    selection.cases(
        [(orientation, first) for first in ("exif", "jfif") for orientation in range(1, 9)],
        lambda orientation, first: first == "exif" or orientation == 6,
    ),
)
def test_exif_orientation_is_applied(orientation, first):
    exif = Image.Exif()
    exif[0x010F] = "A camera"  # other entries stand before the orientation
    exif[0x0112] = orientation
    exif[0x0131] = "and its software"
    encoded = example_images.encode(example_images.smooth(), "JPEG", exif=exif, quality=95)
    if first == "exif":  # cameras write no JFIF block; PIL writes one in front
        encoded = encoded[:2] + encoded[20:]
        assert encoded[6:10] == b"Exif"
    result = decode(encoded, precise=True)
    assert result.shape == ((50, 40, 3) if orientation >= 5 else (40, 50, 3))
    assert np.abs(result.astype(int) - by_pil(encoded)).max() <= 1
    as_stored = decode(example_images.encode(example_images.smooth(), "JPEG", quality=95), precise=True)
    np.testing.assert_array_equal(decode(encoded, precise=True, exif=False), as_stored)


@pytest.mark.parametrize(
    ("before", "after_tables"),
    [
        ([example_images.XMP], False),
        ([example_images.ICC, example_images.ICC], False),
        ([example_images.ADOBE], False),
        ([example_images.PHOTOSHOP], False),
        ([example_images.COMMENT], False),
        ([example_images.segment(0xE0, b"JFXX\0\x13" + bytes(30))], False),
        ([b"\xff\xff", example_images.XMP, b"\xff"], False),
        (
            [
                example_images.XMP,
                example_images.ICC,
                example_images.PHOTOSHOP,
                example_images.ADOBE,
                example_images.COMMENT,
            ],
            False,
        ),
        ([], True),
        ([example_images.XMP], True),
    ],
    ids=["xmp", "icc", "adobe", "photoshop", "comment", "jfxx", "fill", "all", "tables", "tables and xmp"],
)
@pytest.mark.parametrize("jfif", [True, False])
def test_exif_after_other_segments_is_applied(before, after_tables, jfif):
    plain = example_images.encode(example_images.smooth(), "JPEG", quality=95)
    tables = 20 + 69 * after_tables
    assert plain[20:22] == plain[89:91] == b"\xff\xdb"
    parts = (
        plain[2:20] * jfif,
        plain[20:tables],
        *before,
        example_images.EXIF,
        example_images.segment(0xE1, example_images.exif_block(3)),
        plain[tables:],
    )
    encoded = plain[:2] + b"".join(parts)
    np.testing.assert_array_equal(decode(encoded), np.rot90(decode(plain), -1))
    assert ImageOps.exif_transpose(Image.open(io.BytesIO(encoded))).size == (40, 50)


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", [{"mode": "CMYK"}, {"keep_rgb": True}], ids=["cmyk", "rgb"])
def test_exif_of_cmyk_and_rgb_jpeg_is_applied(mode, orientation):
    encoded = example_images.encode(
        example_images.smooth(), "JPEG", quality=95, exif=example_images.exif_block(orientation), **mode
    )
    assert np.abs(decode(encoded).astype(int) - by_pil(encoded)).max() <= 12


def test_orientation_inside_other_segments_and_thumbnails_is_ignored():
    plain = example_images.encode(example_images.smooth(), "JPEG", quality=95)
    second = plain[:2] + example_images.EXIF + plain[20:]
    encoded = plain[:20] + example_images.PHOTOSHOP + example_images.COMMENT + plain[20:] + second
    np.testing.assert_array_equal(decode(encoded), decode(plain))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("PNG", {}),
        ("PNG", {"mode": "L"}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"lossless": True, "mode": "RGBA", "icc_profile": b"odd"}),
        ("WEBP", {"lossless": True, "save_all": True, "append_images": [Image.new("RGB", (50, 40))]}),
    ],
    ids=["png", "gray png", "webp", "transparent webp", "animated webp"],
)
def test_exif_orientation_of_png_and_webp_is_applied(format, options, orientation):
    encoded = example_images.encode(
        example_images.smooth(), format, exif=example_images.exif_block(orientation), **options
    )
    np.testing.assert_array_equal(decode(encoded), by_pil(encoded))
    stored = decode(encoded, exif=False)
    assert stored.shape == (40, 50, 3)
    part = images.decode_and_crop(tf.constant(encoded), lambda shape: tf.constant([0, 0, 20, 50]))
    half = example_images.encode(stored[:20], exif=example_images.exif_block(orientation))
    np.testing.assert_array_equal(part, by_pil(half))


@pytest.mark.parametrize(
    ("before", "after", "turned"),
    [
        ([example_images.chunk(b"tEXt", b"Comment\0eXIf")], [], False),
        (
            [
                example_images.chunk(b"tEXt", b"Comment\0" + b"eXIf" * 30_000),
                example_images.chunk(b"eXIf", example_images.exif_block(6)[6:]),
            ],
            [],
            True,
        ),
        ([example_images.chunk(b"eXIf", example_images.exif_block(6))], [], True),
        ([], [example_images.chunk(b"eXIf", example_images.exif_block(6)[6:])], True),
    ],
    ids=["text", "after text", "with the prefix of JPEG", "after the pixels"],
)
def test_only_the_exif_chunk_of_png_sets_the_orientation(before, after, turned):
    plain = example_images.encode(example_images.smooth())
    encoded = b"".join([plain[:33], *before, plain[33:-12], *after, plain[-12:]])
    assert decode(encoded).shape == by_pil(encoded).shape == ((50, 40, 3) if turned else (40, 50, 3))
    assert decode(plain + example_images.chunk(b"eXIf", example_images.exif_block(6)[6:])).shape == (
        40,
        50,
        3,
    )  # after the end


def test_crop_is_taken_from_the_upright_image():
    plain = example_images.encode(example_images.smooth(), "JPEG", quality=95)
    encoded = plain[:2] + example_images.EXIF + plain[20:]
    np.testing.assert_array_equal(decode(encoded), np.rot90(decode(plain), -1))
    crop = images.decode_and_crop(tf.constant(encoded), lambda shape: tf.constant([0, 0, 16, 32]))
    np.testing.assert_array_equal(
        crop, np.rot90(images.decode_and_crop(tf.constant(plain), lambda _: [0, 0, 16, 32]), -1)
    )


@pytest.mark.parametrize(("smallest", "ratio"), [(None, 1), (81, 1), (80, 2), (40, 4), (20, 8), (1, 8)])
def test_a_part_is_decoded_at_the_smallest_scale_that_keeps_enough_pixels(smallest, ratio):
    encoded = example_images.encode(example_images.smooth(240, 320), "JPEG", quality=95)
    window = tf.constant([40, 80, 160, 200])
    part = images.decode_and_crop(tf.constant(encoded), lambda shape: window, smallest=smallest).numpy()
    image = Image.open(io.BytesIO(encoded))
    image.draft("RGB", (320 // ratio, 240 // ratio))  # libjpeg's own scale
    y, x, height, width = (number // ratio for number in (40, 80, 160, 200))
    expected = np.asarray(image)[y : y + height, x : x + width]
    assert image.size == (320 // ratio, 240 // ratio) and part.shape == expected.shape
    assert np.abs(part.astype(int) - expected).mean() < 2  # TensorFlow's transform is the fast one


def test_scaled_decoding_keeps_the_pixels_of_the_crop():
    encoded = tf.constant(example_images.encode(example_images.smooth(240, 320), "JPEG", quality=95))
    for size, area in ((120, 100), ((8, 30), 20)):
        pp = f"decode_jpeg_and_inception_crop({size}, area_min={area}, ratio_min=1, ratio_max=1, scaled={{}})"
        exact, scaled = (
            preprocess.host_function(pp.format(flag))({"image": encoded}, seed=3)["image"].numpy().astype(int)
            for flag in (False, True)
        )
        assert not np.array_equal(exact, scaled)
        assert np.abs(exact - scaled).mean() < 4  # a smooth image with a range of 255, moved by less than a pixel


def test_damaged_exif_blocks_are_ignored():
    exif = Image.Exif()
    exif[0x0112] = 1
    encoded = example_images.encode(example_images.smooth(), "JPEG", exif=exif)
    start = encoded.index(b"Exif") + 6
    rng = np.random.default_rng(0)
    for first in (b"II*\0", b"MM\0*", rng.bytes(4)) * 20:  # 26 bytes are an entry and what surrounds it
        damaged = encoded[:start] + first + rng.bytes(22) + encoded[start + 26 :]
        assert sorted(decode(damaged).shape) == [3, 40, 50]


@pytest.mark.parametrize("content", [b"", b"\xff", b"\xff\xd8\xff", b"\x89PNG", b"hello", b"GIF89a", b"BM"])
def test_files_that_are_not_images_raise_an_error(content):
    for pp in ("decode", "decode(channels=1)", "decode_jpeg_and_inception_crop(8)"):
        with pytest.raises(tf.errors.InvalidArgumentError):
            preprocess.host_function(pp)({"image": tf.constant(content)})


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_truncated_files_are_errors(format):
    encoded = example_images.encode(example_images.smooth(), format)
    with pytest.raises(tf.errors.InvalidArgumentError):
        decode(encoded[: len(encoded) // 2])


def test_precise_decoding_uses_the_accurate_dct():
    encoded = example_images.encode(example_images.smooth(80, 80), "JPEG", quality=90, subsampling=0)
    precise = np.abs(decode(encoded, precise=True).astype(int) - by_pil(encoded))
    assert precise.max() <= 1
    for format, options in (("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True})):
        other = example_images.encode(example_images.smooth(), format, **options)
        np.testing.assert_array_equal(decode(other, precise=True), example_images.smooth())
