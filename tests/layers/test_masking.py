"""Layers of masked patches: positions of the tokens, and saving with weights."""

import keras
import numpy as np
import pytest

from keras_vit import layers
from keras_vit.layers.masking import take_patches

# Layers of tokens and positions, by name: their arguments, and how many of the five patches the tokens hold.
WITH_PLACES = {
    "VisiblePatches": (dict(num_visible=2, num_prefix_tokens=1), 5),
    "RestoredPatches": (dict(num_prefix_tokens=1), 2),
    "CorruptedPatches": ({}, 4),
}
ORDER = np.array([[3, 0, 4, 1, 2], [1, 2, 0, 4, 3]], np.int32)


def tokens(count, seed=0):
    return np.random.default_rng(seed).normal(size=(2, 1 + count, 8)).astype("float32")


def test_gathered_patches_are_equal_bit_for_bit():
    patches = tokens(5)
    found = np.asarray(take_patches(patches, np.array([[5, 0, -1], [2, 2, 3]])))
    np.testing.assert_array_equal(found[0, 0], patches[0, 5])
    np.testing.assert_array_equal(found[0, 2], 0.0)
    np.testing.assert_array_equal(found[1], patches[1, [2, 2, 3]])


def test_restored_patches_have_their_original_positions():
    """Removing and restoring leaves the visible patches, and mask tokens for the others."""
    x = tokens(5)
    visible = layers.VisiblePatches(2, num_prefix_tokens=1)(x, ORDER)
    np.testing.assert_array_equal(visible[:, 1:], np.take_along_axis(x[:, 1:], ORDER[:, :2, None], axis=1))
    layer = layers.RestoredPatches(num_prefix_tokens=1, name="mask_token")
    restored = np.asarray(layer(visible, ORDER))
    assert layer.mask_token.path == "mask_token/mask_token"
    np.testing.assert_array_equal(restored[:, 0], x[:, 0])
    for image in range(2):
        for patch in range(5):
            seen = patch in ORDER[image, :2]
            expected = x[image, 1 + patch] if seen else np.asarray(layer.mask_token)[0, 0]
            np.testing.assert_array_equal(restored[image, 1 + patch], expected)


def test_corrupted_patches_are_masked_replaced_or_kept():
    x = tokens(3)
    layer = layers.CorruptedPatches(name="mask_token")
    found = np.asarray(layer(x, np.array([[0, -1, 3, 3], [-1, -1, 0, 1]])))
    token = np.asarray(layer.mask_token)[0, 0]
    np.testing.assert_array_equal(found[0], np.stack([x[0, 0], token, x[0, 3], x[0, 3]]))
    np.testing.assert_array_equal(found[1], np.stack([token, token, x[1, 0], x[1, 1]]))


def test_fixed_positions_are_not_trained():
    layer = layers.FixedPositionEmbs((2, 3), num_prefix_tokens=1)
    x = np.zeros((1, 7, 8), "float32")
    found = np.asarray(layer(x))
    assert not layer.trainable_variables
    np.testing.assert_array_equal(found[0, 0], 0.0)
    np.testing.assert_array_equal(found[0, 1:], layers.sincos_2d_table(2, 3, 8, endpoint=False)[0])
    # The first half is a function of the column, the second of the row.
    table = found[0, 1:].reshape(2, 3, 8)
    np.testing.assert_array_equal(table[0, :, :4], table[1, :, :4])
    np.testing.assert_array_equal(table[:, 0, 4:], table[:, 2, 4:])
    with pytest.raises(ValueError, match="hidden_size"):
        layers.sincos_2d_table(2, 2, 6, endpoint=False)


@pytest.mark.parametrize("name", WITH_PLACES)
def test_masking_layers_are_saved_and_loaded(name, tmp_path):
    arguments, count = WITH_PLACES[name]
    layer = getattr(layers, name)(**arguments, name="layer")
    inputs = [keras.Input((1 + count, 8)), keras.Input((5,), dtype="int32")]
    model = keras.Model(inputs, layer(*inputs))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    values = [tokens(count), ORDER]
    np.testing.assert_array_equal(again(values), model(values))
    assert again.output_shape == model.output_shape == (None, *np.shape(model(values))[1:])
