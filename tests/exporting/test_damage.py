"""Damaged and malicious images: the process survives, and every response is a result or a defined error."""

import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit.data import headers, preprocess
from keras_vit.exporting import graph_ops
from tests import tiny


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
def read(contents):
    """The images and flags that `serving_default` computes, with the preprocessing of a real recipe."""
    prepare = preprocess.single_image(tiny.PREPROCESS)
    return graph_ops.map_valid(
        lambda content: prepare(headers.check(content, 100_000, untrusted=True)),
        contents,
        tf.TensorSpec((tiny.SIZE, tiny.SIZE, 3)),
    )


def mutate(content, rng):
    """Flips, cuts, repeats or replaces some bytes."""
    content = bytearray(content)
    for _ in range(rng.integers(1, 9)):
        start = int(rng.integers(0, len(content) + 1))
        length = int(rng.integers(1, 17))
        kind = rng.integers(0, 4)
        if kind == 0 and start < len(content):
            content[start] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            del content[start : start + length]
        elif kind == 2:
            content[start:start] = content[max(0, start - length) : start]
        else:
            content[start : start + length] = rng.bytes(length)
    return bytes(content)


def originals():
    image = tiny.arrays(1, 40, 52)[0]
    return [
        tiny.encode(image, "JPEG", quality=80),
        tiny.encode(image, "JPEG", quality=80, progressive=True),
        tiny.encode(image, "PNG"),
        tiny.encode(image[..., 0], "PNG"),
        tiny.encode(image, "BMP"),
        animation(),
    ]


def animation():
    """A WebP file of two opaque frames, which TensorFlow's decoder writes past the end of its memory."""
    frames = [Image.fromarray(frame) for frame in tiny.arrays(2, 40, 52, seed=1)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    return buffer.getvalue()


@pytest.mark.slow
def test_first_frame_of_an_animation_is_decoded():
    images, valid = read([animation()])
    expected = tf.image.resize(tiny.arrays(2, 40, 52, seed=1)[0], (tiny.SIZE, tiny.SIZE)).numpy()
    assert valid.numpy().tolist() == [True]
    np.testing.assert_allclose((images[0].numpy() + 1) * 127.5, np.floor(expected), atol=1e-3)


def check_answers(contents):
    images, valid = (value.numpy() for value in read(contents))
    assert images.shape == (len(contents), tiny.SIZE, tiny.SIZE, 3)
    assert np.isfinite(images).all()
    assert np.abs(images[valid]).max(initial=0.0) <= 1.0
    assert not images[~valid].any()
    return valid


@pytest.mark.slow
def test_ten_thousand_mutated_images_are_decoded_or_marked_invalid():
    rng = np.random.default_rng(0)
    whole = originals()
    valid = []
    for start in range(0, 10_000, 200):
        contents = [mutate(whole[(start + i) % len(whole)], rng) for i in range(199)]
        answers = check_answers([*contents, whole[0]])
        assert answers[-1], "a good image among damaged ones"
        valid.extend(answers[:-1])
    # Both happen: some damage is harmless to a decoder, some is not.
    assert 0.05 < np.mean(valid) < 0.95


@pytest.mark.slow
def test_truncated_images_are_decoded_or_marked_invalid():
    for content in originals():
        check_answers([content[:length] for length in range(0, len(content), max(1, len(content) // 50))])


def png_of_one_colour(height, width):
    """A valid PNG whose pixels compress a thousandfold."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" * (1 + width)
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.slow
def test_decompression_bombs_are_refused_before_decoding():
    bomb = png_of_one_colour(10_000, 10_000)
    assert len(bomb) < 200_000
    assert check_answers([png_of_one_colour(300, 300)]).all()  # the same file, of a size that is allowed
    assert not check_answers([bomb] * 8).any()


def test_bombs_of_every_format_are_refused():
    image = np.zeros((400, 400, 3), np.uint8)  # 160,000 pixels, 100,000 allowed
    contents = [tiny.encode(image, kind) for kind in ("JPEG", "PNG", "BMP", "WEBP")]
    assert not check_answers(contents).any()
    contents = [tiny.encode(image[:200], kind) for kind in ("JPEG", "PNG", "BMP", "WEBP")]
    assert check_answers(contents).all()


def test_other_bytes_are_not_images():
    rng = np.random.default_rng(1)
    contents = [
        tiny.encode(np.zeros((8, 8, 3), np.uint8), "GIF"),
        b"",
        b"\0",
        b"<svg></svg>",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"RIFF\0\0\0\0WEBP",
    ]
    contents += [rng.bytes(length) for length in (1, 31, 32, 33, 4096)]
    assert not check_answers(contents).any()
