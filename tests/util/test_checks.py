"""Checks of arguments at their bounds, and the texts and colors that pages, logs and tables share."""

import math

import numpy as np
import pytest

from keras_vit.inference.masks import overlay, palette
from keras_vit.util import checks, formatting
from keras_vit.util.metrics import Metric
from keras_vit.util.values import Values


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checks.positive_int, [1, np.int64(3)], [0, -1, True, 1.0, "1", None]),
        (checks.rate, [0, 0.0, 0.999], [-1e-9, 1.0, 1, True, "0.5", math.nan]),
        (checks.finite_number, [1e-9, 2], [0, -1.0, math.inf, math.nan, True, "1"]),
        (checks.any_number, [0, -1.5], [math.inf, math.nan, True, "1", None]),
        (checks.interval, [(0, 1), [-1.0, 1]], [(0, 0), (1, 0), (0, 1, 2), 5, (0, math.inf)]),
        (checks.optional_text, [None, "a"], ["", 5, b"a"]),
        (checks.size_pair, [3, (2, 3), [2, 3]], [0, (2,), (2, 3, 4), (2, 0), "3"]),
        (checks.positive_ints, [5, [1, 2]], [0, (1, 0), (), "5"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_values_are_checked_at_their_bounds(check, good, bad):
    for value in good:
        check("x", value)
    for value in bad:
        with pytest.raises(ValueError, match="`x` must be .*Received: x="):
            check("x", value)


def test_custom_bounds_are_checked():
    assert checks.positive_ints("x", (0, 2), minimum=0) == (0, 2)
    assert checks.finite_numbers("x", (0, 0.5), zero=True) == (0.0, 0.5)
    with pytest.raises(ValueError, match="an integer of at least 2. Received: x=1"):
        checks.positive_int("x", 1, minimum=2)
    with pytest.raises(ValueError, match="a finite number at least 0. Received: x=-1"):
        checks.finite_number("x", -1, zero=True)


@pytest.mark.parametrize(("value", "nearest"), [(230, "224 or 240"), (17, "16 or 32"), (5, "16")])
def test_message_names_the_nearest_multiples(value, nearest):
    assert checks.divisible("x", 32, "by", 16) == 32
    with pytest.raises(ValueError) as error:
        checks.divisible("x", value, "by", 16)
    message = f"`x` must be a multiple of `by`=16. Received: x={value}. The nearest multiples: {nearest}."
    assert str(error.value) == message


def test_class_numbers_are_below_the_number_of_classes():
    assert checks.class_index(6, 7) == 6
    assert checks.class_index([0, 6], 7, 2).tolist() == [0, 6]
    assert checks.class_index(3, 7, 2).tolist() == [3, 3]
    for value in (7, -1, [0, 7], [-1, 0]):
        with pytest.raises(ValueError, match=r"in 0\.\.6\. Received: class_index="):
            checks.class_index(value, 7, 2)
    for value in (1.0, True, [0, 1, 2]):
        with pytest.raises(ValueError, match="or one for each of the 2 images. Received"):
            checks.class_index(value, 7, 2)


def test_a_choice_has_the_type_of_its_value():
    assert checks.choice("x", True, (True, False)) is True
    for value, choices in ((1, (True, False)), (True, (1, 2)), ("1", (1, 2))):
        with pytest.raises(ValueError, match=f"`x` must be one of .*Received: x={value!r}"):
            checks.choice("x", value, choices)
    with pytest.raises(ValueError, match=r"Received: x='adaw'\. Did you mean 'adamw'\?"):
        checks.choice("x", "adaw", ("sgd", "adamw"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1, "b": 2}, "dict with the keys ['a', 'b']"),
        (np.zeros((2, 3)), "shape (2, 3)"),
        ((1, 2), "tuple of 2"),
        ("abc", "'abc'"),
        (None, "None"),
        (2.5, "2.5"),
        (object(), "object"),
    ],
)
def test_long_values_are_described_in_messages(value, text):
    assert checks.described(value) == text


def test_numbers_are_formatted_for_tables():
    texts = {None: "–", True: "True", 101_514: "101,514", 0.031254: "0.03125", 1_234_567.0: "1.235e+06", "x": "x"}
    assert {value: formatting.number(value) for value in texts} == texts
    assert (formatting.percent(0.825), formatting.percent(0.82456, 2)) == ("82.5%", "82.46%")
    share, loss = Metric("share", unit="%"), Metric("loss", larger_is_better=False, unit="nats")
    assert (share.text(0.9312), share.text(3), share.text(None)) == ("93.12%", "3", "–")
    assert (loss.text(0.25), loss.text(1.2345, 2), loss.text(None)) == ("0.25 nats", "1.2 nats", "–")
    assert (share.goodness(0.5), loss.goodness(0.5)) == (0.5, -0.5)


def test_class_colors_are_distinct():
    colors = palette(300)
    assert colors.shape == (300, 3) and colors.dtype == np.uint8
    assert colors[[0, 1, 7, 255]].tolist() == [[120, 120, 120], [230, 159, 0], [204, 121, 167], [255, 255, 255]]
    assert len(np.unique(colors[:256], axis=0)) > 250  # further classes have colors of their own
    np.testing.assert_array_equal(colors[256:], colors[:44])


@pytest.mark.parametrize("channels", [1, 3])
def test_mask_colors_over_an_image_are_half_transparent(channels):
    pixels = np.full((1, 3, channels), 201, np.uint8)
    found = overlay(pixels, np.array([[-1, 0, 1]]))
    assert found.dtype == np.uint8
    assert found.tolist() == [[[201, 201, 201], [160, 160, 160], [215, 180, 100]]]


@pytest.mark.parametrize(
    ("mean", "deviation", "message"),
    [
        ((0.0,), (1.0, 1.0), "mean must contain one finite number for each of age, weight"),
        ((0.0, math.nan), (1.0, 1.0), "mean must contain"),
        ((0.0, 0.0), (1.0, math.inf), "deviation must contain"),
        ((0.0, 0.0), (1.0, 0.0), r"must be positive. Received: \(1.0, 0.0\)"),
    ],
)
def test_values_of_a_regression_have_a_mean_and_a_deviation(mean, deviation, message):
    with pytest.raises(ValueError, match=message):
        Values(("age", "weight"), mean, deviation)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/home/me/images/", ".../images"),
        ("folder:/home/me/images", "folder:.../images"),
        ("npz:/a/b.npz#split=('/c/d', 1)", "npz:.../b.npz#split=('.../d', 1)"),
        ({"a": ["/b/c", 1, None], "d": ("/e/f",)}, {"a": [".../c", 1, None], "d": [".../f"]}),
        ("images/", "images"),
        ("https://host/a and 3 / 4", "https://host/a and 3 / 4"),
    ],
)
def test_only_the_name_of_an_absolute_path_is_recorded(value, expected):
    assert formatting.without_folders(value, ".../") == expected
