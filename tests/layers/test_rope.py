"""Rotary positions: closed forms, relative positions, and what training changes at random."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import layers
from keras_vit.layers.attention import rotate
from keras_vit.layers.dropout import replay


def grid(height, width):
    return np.zeros((1, height, width, 4), "float32")


def table(layer, height, width, training=False):
    return ops.convert_to_numpy(layer(grid(height, width), training=training))


def test_angles_match_the_formula():
    """Section 3.3 of DINOv3's code in plain loops: y before x, halves repeated, prefix tokens not rotated."""
    height, width, head_dim, base = 2, 3, 12, 50.0
    cosines, sines = table(layers.RotaryPositions(head_dim, num_prefix_tokens=2, base=base), height, width)
    for row in range(height):
        for column in range(width):
            y, x = 2 * (row + 0.5) / height - 1, 2 * (column + 0.5) / width - 1
            periods = [base ** (2 * j / (head_dim / 2)) for j in range(head_dim // 4)]
            angles = [2 * np.pi * y / period for period in periods] + [2 * np.pi * x / period for period in periods]
            place = 2 + row * width + column
            # Angles up to 2 pi in float32.
            np.testing.assert_allclose(cosines[place], np.cos(angles * 2), atol=2e-6)
            np.testing.assert_allclose(sines[place], np.sin(angles * 2), atol=2e-6)
    np.testing.assert_array_equal(cosines[:2], 1.0)
    np.testing.assert_array_equal(sines[:2], 0.0)


def test_pairs_are_the_halves_of_a_head():
    x = np.random.default_rng(0).normal(size=(1, 1, 1, 4)).astype("float32")
    angles = np.array([0.3, 1.1])
    rotation = np.stack([np.cos(angles), np.sin(angles)]).astype("float32")[:, None]
    turned = ops.convert_to_numpy(rotate(x, np.concatenate([rotation, rotation], axis=-1)))[0, 0, 0]
    expected = (x[0, 0, 0, :2] + 1j * x[0, 0, 0, 2:]) * np.exp(1j * angles)
    np.testing.assert_allclose(turned[:2] + 1j * turned[2:], expected, atol=1e-6)


@pytest.mark.parametrize("prefix", [0, 3])
def test_products_depend_only_on_relative_positions(prefix):
    """The same query and key have equal products at all pairs of positions with equal offsets."""
    height, width, head_dim = 4, 5, 16
    rotation = table(layers.RotaryPositions(head_dim, prefix), height, width)
    query, key = np.random.default_rng(1).normal(size=(2, head_dim)).astype("float32")
    queries, keys = (np.broadcast_to(v, (1, prefix + height * width, 1, head_dim)) for v in (query, key))
    turned = [ops.convert_to_numpy(rotate(np.array(v), rotation))[0, prefix:, 0] for v in (queries, keys)]
    products = (turned[0] @ turned[1].T).reshape(height, width, height, width)
    np.testing.assert_allclose(products[1:, 1:, 1:, 1:], products[:-1, :-1, :-1, :-1], rtol=1e-4, atol=1e-5)
    assert np.abs(products[0, 0, 0, 1] - products[0, 0, 1, 0]) > 1e-3


def test_rotation_applies_to_queries_of_only_the_first_tokens():
    attention = layers.SelfAttention(2)
    x = np.random.default_rng(2).normal(size=(2, 1 + 6, 16)).astype("float32")
    rotation = layers.RotaryPositions(8, num_prefix_tokens=1)(grid(2, 3))
    whole = ops.convert_to_numpy(attention(x, rotation=rotation))
    first = ops.convert_to_numpy(attention(x[:, :1], context=x, rotation=rotation))
    np.testing.assert_allclose(first, whole[:, :1], rtol=1e-5, atol=1e-6)
    assert np.abs(whole - ops.convert_to_numpy(attention(x))).max() > 1e-3


def coordinates(layer, training=True):
    """The coordinates (y, x) of a 2 x 2 grid's last patch, from angles of period 8 that do not wrap around."""
    cosines, sines = table(layer, 2, 2, training)
    angles = np.arctan2(sines[-1], cosines[-1])
    quarter = layer.head_dim // 4
    return angles[[quarter - 1, 2 * quarter - 1]] / (2 * np.pi) * layer.base ** ((quarter - 1) / quarter)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "low", "high", "same"),
    [
        ({"shift": 0.3}, 0.5 - 0.3, 0.5 + 0.3, False),
        ({"jitter": 1.5}, 0.5 / 1.5, 0.5 * 1.5, False),
        ({"rescale": 2.0}, 0.25, 1.0, True),
    ],
)
def test_training_changes_coordinates_within_the_range(arguments, low, high, same):
    layer = layers.RotaryPositions(16, base=1e4, seed=0, **arguments)
    found = np.array([coordinates(layer) for _ in range(60)])
    assert (found > low - 1e-3).all() and (found < high + 1e-3).all()
    assert (found.min(axis=0) < low + 0.1).all() and (found.max(axis=0) > high - 0.1).all()
    assert np.allclose(found[:, 0], found[:, 1], atol=1e-4) == same
    np.testing.assert_allclose(coordinates(layer, training=False), 0.5, atol=1e-5)


def test_the_order_is_shift_then_factors():
    layer = layers.RotaryPositions(16, base=1e4, shift=0.2, jitter=1.2, rescale=1.5, seed=1)
    seed = np.array([3, 4], "uint32")
    with replay([layer.seed_generator], [seed]):
        found = coordinates(layer)
        draw = ops.convert_to_numpy(keras.random.uniform((5,), -1.0, 1.0, seed=layer.seed_generator))
    factor = 1.2 ** draw[2:4] * 1.5 ** draw[4]
    np.testing.assert_allclose(found, (0.5 + 0.2 * draw[:2]) * factor, atol=1e-4)


def test_half_precision_uses_the_angles_of_float32():
    exact = table(layers.RotaryPositions(16), 7, 9)
    rounded = table(layers.RotaryPositions(16, dtype="mixed_bfloat16"), 7, 9)
    np.testing.assert_array_equal(rounded.astype("float32"), exact.astype(rounded.dtype).astype("float32"))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"head_dim": 6}, "head_dim"),
        ({"shift": -1}, "shift"),
        ({"jitter": 0.5}, "jitter"),
        ({"rescale": 0}, "rescale"),
        ({"base": 0}, "base"),
    ],
)
def test_wrong_arguments_are_refused(arguments, name):
    with pytest.raises(ValueError, match=name):
        layers.RotaryPositions(**{"head_dim": 8, **arguments})


def test_smallest_augmentation_leaves_coordinates_unchanged():
    layer = layers.RotaryPositions(8, shift=0, jitter=1, rescale=1.0)
    np.testing.assert_array_equal(table(layer, 2, 3, training=True), table(layer, 2, 3))
