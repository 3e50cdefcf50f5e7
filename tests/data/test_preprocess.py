import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data
from keras_vit.data import parse, preprocess
from tests import golden_data, selection

EVAL = "decode|resize_small(96)|central_crop(64)|value_range(-1, 1)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file"),
    selection.cases(
        [(n, file) for n in ("eval", "squash", "area") for file in ("wide.jpg", "tall.jpg", "small.png", "gray.png")],
        lambda name, file: name == "eval" or file == "wide.jpg",
    ),
)
def test_preprocessing_matches_big_vision(golden, name, file):
    data = golden("preprocess")
    function = preprocess.single_image(data["meta"]["pp"][name])
    encoded = tf.constant(golden_data.path(f"images/{file}").read_bytes())
    expected = data[f"{name}/{file}"]
    np.testing.assert_array_equal(function(encoded).numpy(), expected)
    # In a graph, TensorFlow turns the division by 255 into a multiplication: one rounding of float32.
    in_graph = tf.function(function, autograph=False)(encoded).numpy()
    np.testing.assert_allclose(in_graph, expected, rtol=0, atol=2**-23)


def test_resize_without_cast_matches_tensorflow():
    pixels = tf.random.stateless_uniform([9, 13, 3], [1, 2], 0, 256, tf.int32)
    image = tf.cast(pixels, tf.uint8)
    result = preprocess.host_function("resize(5, cast=False)")({"image": image})["image"]
    expected = tf.image.resize(image, [5, 5])
    np.testing.assert_array_equal(result, expected)
    cast = preprocess.host_function("resize(5)")({"image": image})["image"]
    np.testing.assert_array_equal(cast, tf.cast(expected, tf.uint8))  # the fraction is cut off
    assert np.abs(result.numpy() - cast.numpy()).max() > 0.5


@pytest.mark.parametrize(
    ("pp", "host", "device"),
    [
        (EVAL, "decode|resize_small(96)|central_crop(64)", "value_range(-1, 1)"),
        ("value_range(0, 1)|value_norm()", "", "value_range(0, 1)|value_norm()"),
        (
            "resize(4)|value_range()|onehot(3)|keep('image', 'label')",
            "resize(4)|onehot(3)|keep('image', 'label')",
            "value_range()",
        ),
        ("value_range(0, 255)|resize(4)", "value_range(0, 255)|resize(4)", ""),
        ("decode", "decode", ""),
        ("", "", ""),
    ],
)
def test_string_is_split_into_host_and_device_part(pp, host, device):
    assert preprocess.split(pp) == (host, device)


def test_host_then_device_part_equals_the_whole():
    image = tf.constant(golden_data.path("images/wide.jpg").read_bytes())
    host, device = preprocess.host_function(EVAL), preprocess.device_function(EVAL)
    on_host = host({"image": image})["image"]
    assert on_host.dtype == tf.uint8
    np.testing.assert_array_equal(device(on_host[None])[0], preprocess.single_image(EVAL)(image))
    # The device's part alone means the same.
    only_device = preprocess.device_function(preprocess.split(EVAL)[1])
    np.testing.assert_array_equal(only_device(on_host[None]), device(on_host[None]))


def test_device_function_compiles():
    function = preprocess.device_function("decode|resize(4)|value_norm()")
    images = tf.constant(np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3))
    compiled = tf.function(function, jit_compile=True, autograph=False)(images)
    # The compiler may contract multiplication and addition: a few roundings of values up to 3.
    np.testing.assert_allclose(compiled, function(images), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pp", "size"),
    [
        (EVAL, (64, 64)),
        ("resize((32, 48))", (32, 48)),
        ("decode_jpeg_and_inception_crop(24)|flip_lr|randaug(2, 10)|value_range()", (24, 24)),
        ("decode|resize(36)|random_crop(32)|pad(2)", (36, 36)),
        ("decode|resize(30)|onehot(10)|keep('image', 'label')|value_range()", (30, 30)),
    ],
)
def test_output_size_is_computed_from_the_string(pp, size):
    assert preprocess.output_size(pp) == size


@pytest.mark.parametrize("pp", ["decode|value_range(-1, 1)", "decode|resize_small(32)", ""])
def test_output_size_must_be_fixed(pp):
    with pytest.raises(ValueError, match="not fixed.*resize"):
        preprocess.output_size(pp)


@pytest.mark.slow
def test_single_image_is_traceable_and_adds_decode():
    encoded = tf.constant(golden_data.path("images/small.png").read_bytes())
    function = tf.function(
        preprocess.single_image("resize(16)|value_range(-1, 1)"), [tf.TensorSpec([], tf.string)], autograph=False
    )
    assert function.get_concrete_function().structured_outputs.shape == (16, 16, 3)
    result = function(encoded)
    assert result.dtype == tf.float32
    expected = preprocess.single_image("decode|resize(16)|value_range(-1, 1)")(encoded)
    np.testing.assert_allclose(result, expected, rtol=0, atol=2**-23)  # as in the golden test


def test_single_image_refuses_random_operations():
    with pytest.raises(ValueError, match=r"must not be random.*flip_lr"):
        preprocess.single_image("decode|resize(8)|flip_lr")


def test_arrays_and_files_are_preprocessed_alike():
    """A source of arrays and a PNG of the same array give the model the same."""
    array = np.arange(64, dtype=np.uint8).reshape(8, 8, 1) * 4
    pp = "decode|resize(12)|value_range(-1, 1)"
    host, device = preprocess.host_function(pp), preprocess.device_function(pp)
    from_array = device(host({"image": tf.constant(array)})["image"])
    from_file = preprocess.single_image(pp)(tf.io.encode_png(array))
    assert from_array.shape == (12, 12, 3)
    np.testing.assert_array_equal(from_array, from_file)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("given", [1, 3])
def test_decode_gives_arrays_the_requested_channels(given, channels):
    array = np.random.default_rng(0).integers(0, 256, (4, 5, given), dtype=np.uint8)
    result = preprocess.host_function(f"decode(channels={channels})")({"image": tf.constant(array)})["image"]
    assert result.shape == (4, 5, channels)
    if given == channels:
        np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize(
    ("pp", "marked", "words"),
    [
        (
            "decode|resise(224)|flip_lr",
            "resise",
            ["unknown operation 'resise'", "Did you mean 'resize'?", "central_crop"],
        ),
        ("decode|resize(224, metod='area')", "metod='area'", ["'metod'", "Did you mean 'method'?", "antialias"]),
        ("decode|resize()", "resize()", ["missing a required argument", "resize(size,"]),
        ("decode|resize(1, 2, 3, 4, 5)", "resize(1, 2, 3, 4, 5)", ["too many positional"]),
        ("decode|resize(size)", "size", ["not a literal", "resize(size,"]),
        ("decode|resize(__import__('os'))", "__import__('os')", ["not a literal"]),
        ("decode|resize(-3)", "resize(-3)", ["integer of at least 1", "-3"]),
        ("resize(4, 'cubic')", "resize(4, 'cubic')", ["'bicubic'", "Did you mean"]),
        ("decode|'resize'", "'resize'", ["not a name"]),
        ("decode|tf.io.read_file('x')", "tf.io.read_file('x')", ["not a name"]),
        ("decode||flip_lr", "|", ["syntax"]),
        ("decode|resize(224", "(", ["never closed"]),
        ("randaug(2, 10, mode='wrong')", "randaug(2, 10, mode='wrong')", ["'reference'", "'corrected'"]),
        ("color_jitter(hue=0.7)", "color_jitter(hue=0.7)", ["at most 0.5"]),
    ],
)
def test_errors_point_at_the_position_in_the_string(pp, marked, words):
    with pytest.raises(ValueError) as error:
        preprocess.split(pp)
    message = str(error.value)
    _, text, carets, *_ = message.splitlines()
    start = carets.index("^")
    assert text[2:] == pp
    assert text[start : start + len(marked)] == marked
    assert carets.count("^") in (1, len(marked))
    for word in words:
        assert word in message


def test_strings_may_span_several_lines():
    assert preprocess.split("decode\n|resize(8)\n|value_range()") == ("decode|resize(8)", "value_range()")
    with pytest.raises(ValueError) as error:
        preprocess.split("decode\n  |resise(8)\n  |flip_lr")
    _, text, carets, *_ = str(error.value).splitlines()
    assert text[carets.index("^") :].startswith("resise(8)")


def test_other_types_than_strings_are_refused():
    with pytest.raises(ValueError, match="preprocessing string must be a string"):
        preprocess.split(None)


def test_encoded_images_require_decode():
    with pytest.raises(ValueError, match=r"'decode\|' must come before 'resize\(8\)'"):
        preprocess.host_function("resize(8)")({"image": tf.constant(b"...")})


def test_repeated_random_operations_draw_independently():
    """Two flips in a row must not cancel: each position in the string has its own random numbers."""
    image = tf.constant(np.arange(6, dtype=np.uint8).reshape(1, 2, 3))
    function = preprocess.host_function("flip_lr|flip_lr")
    flipped = [(function({"image": image}, 0, p)["image"] != image).numpy().any() for p in range(40)]
    assert 5 < sum(flipped) < 35


def test_onehot_and_keep_select_keys():
    pp = "onehot(4, key='label', key_result='labels')|keep('image', 'labels')"
    example = {"image": tf.zeros([2, 2, 3], tf.uint8), "label": tf.constant(2), "name": tf.constant("x")}
    result = preprocess.host_function(pp)(example)
    assert sorted(result) == ["image", "label"]
    np.testing.assert_array_equal(result["label"], [0, 0, 1, 0])


@pytest.mark.parametrize(
    ("pp", "label", "expected"),
    [
        ("onehot(3)", 1, [0, 1, 0]),
        ("onehot(3)", [0, 2], [1, 0, 1]),
        ("onehot(3, on=0.9, off=0.05)", [0, 2], [0.9, 0.05, 0.9]),
        ("onehot(3, on=0.0, off=1.0)", [0, 2], [0, 1, 0]),
    ],
)
def test_onehot_encodes_one_or_several_labels(pp, label, expected):
    example = {"image": tf.zeros([2, 2, 3], tf.uint8), "label": tf.constant(label)}
    np.testing.assert_allclose(preprocess.host_function(pp)(example)["label"], expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pp", "shape", "expected"),
    [
        ("value_range(-1, 1)", (8, 8, 1), "decode(1)|resize((8, 8), method='area')|value_range(-1, 1)"),
        ("decode|resize(8)|value_range(-1, 1)", (8, 8, 3), "decode|resize(8)|value_range(-1, 1)"),
        ("resize(8)|value_range(-1, 1)", (8, 8, 3), "decode(3)|resize(8)|value_range(-1, 1)"),
        ("value_range(-1, 1)", (8, 12, 3), "decode(3)|resize((8, 12), method='area')|value_range(-1, 1)"),
        ("value_range(-1, 1)", (None, None, 3), "decode(3)|value_range(-1, 1)"),
    ],
)
def test_preprocessing_of_arrays_is_completed(pp, shape, expected):
    assert preprocess.complete(pp, shape) == expected


@pytest.mark.slow
def test_completed_preprocessing_does_not_change_images_of_the_right_size():
    source = data.open_source("digits", "test")
    complete = preprocess.complete("value_range(-1, 1)", (8, 8, 1))
    prepare = preprocess.single_image(complete)
    for image in source.images[:20]:
        prepared = prepare(tf.io.encode_png(image)).numpy()
        np.testing.assert_array_equal(prepared, -1 + image.astype(np.float32) / np.float32(255) * 2)


DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"


def test_documented_message_of_an_unknown_operation_is_current():
    text = (DOCS / "data.md").read_text(encoding="utf-8")
    (quoted,) = re.findall(r"```\n(Error in the .*?), \.\.\.\n```", text, re.DOTALL)
    with pytest.raises(ValueError) as raised:
        preprocess.host_function("decode|resise(224)|flip_lr")
    assert str(raised.value).startswith(quoted)


def test_every_operation_is_documented():
    text = (DOCS / "reference" / "preprocessing.md").read_text(encoding="utf-8")
    assert [name for name in parse.OPS if f"`{name}" not in text] == []
