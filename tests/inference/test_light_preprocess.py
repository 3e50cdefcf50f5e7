"""Preprocessing without TensorFlow has the values of the preprocessing with it, bit for bit."""

import inspect
import io
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from keras_vit.data import parse, preprocess
from keras_vit.inference import light_decode, light_preprocess, preparation
from tests import tiny
from tests.data import example_images

STRINGS = [
    "decode|resize(48)|value_range(-1, 1)",
    "decode|resize((37, 91), antialias=True)|value_range(-1, 1)",
    "decode|resize_small(19, method='bilinear', antialias=True, cast=False)",
    "decode|resize((33, 57), method='area')|value_range(0, 1, clip_values=True)",
    "decode|resize_small(40)|central_crop(32)|value_norm()",
    "decode|resize_small(36, cast=False)|central_crop|vgg_value_range()",
    "decode(precise=True, exif=False)|resize(64, cast=False)|value_range(-1, 1)",
]
GRAY = "decode(1)|resize((8, 8), method='area')|value_range(-1, 1)"


def encoded(kind, mode="RGB", seed=0, **options):
    rng = np.random.default_rng(seed)
    height, width = (int(size) for size in rng.integers(41, 200, 2))
    image = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).resize((width, height)).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def assert_equal(pp, content):
    light = light_preprocess.function_of(pp)
    assert light is not None
    expected = preprocess.single_image(pp)(content_tensor(content)).numpy()
    found = light(content)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


def content_tensor(content):
    import tensorflow as tf

    return tf.constant(content)


@pytest.mark.parametrize("pp", STRINGS)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_png_matches_tensorflow(pp, mode):
    assert_equal(pp, encoded("PNG", mode))


def test_gray_images_match_tensorflow():
    assert_equal(GRAY, encoded("PNG", "L"))


@pytest.mark.parametrize("pp", [*STRINGS, GRAY])
@pytest.mark.parametrize(
    "options", [{"quality": 50}, {"quality": 95, "subsampling": 0}, {"progressive": True}], ids=str
)
def test_jpeg_matches_tensorflow(pp, options):
    pytest.importorskip("simplejpeg", reason="pip install 'keras-vision-transformers[litert]'")
    for mode in ("RGB", "L"):
        assert_equal(pp, encoded("JPEG", mode, seed=len(options), **options))


@pytest.mark.parametrize("orientation", range(10))
def test_exif_orientation_matches_tensorflow(orientation):
    pytest.importorskip("simplejpeg", reason="pip install 'keras-vision-transformers[litert]'")
    exif = Image.Exif()
    exif[0x112] = orientation
    assert_equal(STRINGS[0], encoded("JPEG", exif=exif))


@pytest.mark.parametrize("values", [(3, 6), (6, 3)])
def test_several_orientations_match_tensorflow(values):
    pytest.importorskip("simplejpeg", reason="pip install 'keras-vision-transformers[litert]'")
    content, one = encoded("JPEG"), example_images.exif_block(values[0])
    # Two entries in place of one, before the end of the directory.
    block = one[:14] + b"\0\2" + one[16:-4] + example_images.exif_block(values[1])[16:]
    assert_equal(STRINGS[0], content[:20] + example_images.segment(0xE1, block) + content[20:])


@pytest.mark.parametrize(
    "before",
    [
        example_images.XMP,
        example_images.COMMENT,
        example_images.PHOTOSHOP,
        example_images.ICC,
        example_images.XMP + example_images.EXIF,
    ],
    ids=["xmp", "comment", "photoshop", "icc", "two"],
)
@pytest.mark.parametrize("jfif", [True, False])
def test_exif_at_other_positions_is_left_to_tensorflow(before, jfif):
    pytest.importorskip("simplejpeg", reason="pip install 'keras-vision-transformers[litert]'")
    content = encoded("JPEG")
    content = content[: 20 if jfif else 2] + before + example_images.EXIF + content[20:]
    with pytest.raises(light_preprocess.NotCovered):
        light_preprocess.function_of(STRINGS[0])(content)


PLAIN = example_images.encode(example_images.smooth())
END = PLAIN[-12:]
ROWS = PLAIN[41:-16]  # the only part, between its name and its checksum


@pytest.mark.parametrize(
    "content",
    [
        PLAIN[:-13] + bytes([PLAIN[-13] ^ 1]) + END,
        PLAIN[:-12],
        PLAIN[:33] + example_images.chunk(b"UNKN", b"") + PLAIN[33:],
        PLAIN[:33] + example_images.chunk(b"l33t", b"") + PLAIN[33:],
        PLAIN[:33] + PLAIN[8:],
        PLAIN[:33] + example_images.chunk(b"IDAT", ROWS[:-4]) + END,
        PLAIN[:33] + example_images.chunk(b"IDAT", zlib.compress(zlib.decompress(ROWS)[:-100])) + END,
        PLAIN[:33] + example_images.chunk(b"IDAT", zlib.compress(zlib.decompress(ROWS) + bytes(9))) + END,
        PLAIN[:33] + example_images.chunk(b"eXIf", example_images.exif_block(6)[6:]) + PLAIN[33:],
        PLAIN[:33] + example_images.chunk(b"acTL", bytes(8)) + PLAIN[33:],
    ],
    ids=[
        *("checksum", "no end", "unknown", "no name", "two headers", "no checksum of rows", "rows missing"),
        *("more rows", "exif", "animation"),
    ],
)
def test_png_that_only_pillow_reads_are_left_to_tensorflow(content):
    assert PLAIN[37:41] == b"IDAT" and Image.open(io.BytesIO(PLAIN)).size
    with pytest.raises(light_preprocess.NotCovered):
        light_preprocess.function_of(STRINGS[0])(content)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_images_of_more_than_20_million_pixels_are_left_to_tensorflow(kind, monkeypatch):
    content = encoded(kind)
    width, height = Image.open(io.BytesIO(content)).size
    assert light_decode.LARGE == 20_000_000
    for limit in (width * height, width * height - 1):
        monkeypatch.setattr(light_decode, "LARGE", limit)
        function = light_preprocess.function_of(STRINGS[0])
        if limit == width * height:
            function(content)
        else:
            with pytest.raises(light_preprocess.NotCovered):
                function(content)


@pytest.mark.parametrize(
    "pp",
    [
        "resize(8)|value_range(-1, 1)",
        "decode|resize(8, method='bicubic')",
        "decode|resize(8, method='bicubic', antialias=True)",
        "decode|flip_lr",
        "decode|resize(size=0)",
        "decode|decode",
        "decode(2)",
        "decode|",
    ],
)
def test_other_strings_are_left_to_tensorflow(pp):
    assert light_preprocess.function_of(pp) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GIF89a",
        encoded("BMP"),
        encoded("PNG", "P"),
        encoded("PNG", "LA"),
        encoded("PNG", "I;16"),
        encoded("PNG")[:500],
        encoded("JPEG")[:500],
        encoded("JPEG", "CMYK"),
    ],
)
def test_other_files_are_left_to_tensorflow(content):
    with pytest.raises(light_preprocess.NotCovered):
        light_preprocess.function_of(STRINGS[0])(content)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_large_images_are_left_to_tensorflow(kind):
    """TensorFlow reports them before it allocates memory."""
    with pytest.raises(light_preprocess.NotCovered):
        light_preprocess.function_of("decode(max_pixels=100)")(encoded(kind))


@pytest.mark.parametrize("name", light_preprocess.OPERATIONS)
def test_operations_have_the_arguments_of_the_tensorflow_operations(name):
    ours, theirs = (inspect.signature(f) for f in (light_preprocess.OPERATIONS[name], parse.OPS[name].factory))
    assert list(ours.parameters.values()) == list(theirs.parameters.values())


def test_tensorflow_preprocesses_only_what_the_light_path_does_not_cover(monkeypatch):
    pp, content = tiny.PREPROCESS, tiny.images(1).contents[0]
    expected = preprocess.single_image(pp)(content_tensor(content)).numpy()
    assert "tensorflow" in sys.modules
    calls = []
    monkeypatch.setattr(preparation, "_with_tensorflow", lambda pp: calls.append)
    np.testing.assert_array_equal(preparation.image_function(pp)(content), expected)
    assert calls == []
    preparation.image_function(pp)(b"GIF89a")
    assert calls == [b"GIF89a"]


def test_pillow_resizing_of_floats_is_left_to_tensorflow():
    """TensorFlow reports the error of a string that resizes numbers with Pillow."""
    with pytest.raises(light_preprocess.NotCovered):
        light_preprocess.function_of("decode|resize(64, cast=False)|resize(32, 'pillow_bicubic')")(encoded("PNG"))
