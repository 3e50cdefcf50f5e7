"""Random selection of masked patches, with expected values by hand."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import seeds


@pytest.mark.slow
def test_shares_of_corrupted_patches_match_bert():
    """As in BERT: 80% become the mask token, 10% another patch, 10% stay unchanged."""
    sources, corrupted = seeds.patch_corruptions(0, tf.constant(1, tf.int64), 4000, 2, 1)
    sources, corrupted = np.array(sources), np.array(corrupted)
    assert corrupted.sum(axis=1).tolist() == [1] * 4000
    own = np.broadcast_to(np.arange(2), sources.shape)
    np.testing.assert_array_equal(sources[~corrupted], own[~corrupted])
    found = sources[corrupted]
    shares = [np.mean(found == -1), np.mean(found == 1 - own[corrupted]), np.mean(found == own[corrupted])]
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.02)  # 4,000 draws: 3 and 4 standard deviations


def test_replacement_patches_are_drawn_from_all_other_patches():
    sources, corrupted = seeds.patch_corruptions(0, tf.constant(1, tf.int64), 3000, 4, 4)
    own = np.broadcast_to(np.arange(4), sources.shape)
    swapped = np.array(corrupted) & (np.array(sources) >= 0) & (np.array(sources) != own)
    offsets = (np.array(sources) - own)[swapped] % 4
    np.testing.assert_allclose(np.bincount(offsets, minlength=4) / len(offsets), [0, 1 / 3, 1 / 3, 1 / 3], atol=0.06)


def test_orders_are_permutations_that_depend_on_seed_and_step():
    orders = [
        np.array(seeds.patch_orders(seed, tf.constant(step, tf.int64), 5, 9)) for seed, step in [(0, 0), (0, 1), (1, 0)]
    ]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order, axis=1), np.tile(np.arange(9), (5, 1)))
    assert not np.array_equal(orders[0], orders[1]) and not np.array_equal(orders[0], orders[2])
