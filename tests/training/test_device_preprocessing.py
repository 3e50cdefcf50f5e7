"""Preprocessing of a batch on the devices, with expected values by hand."""

import numpy as np
import tensorflow as tf

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.training import device_preprocessing

BATCH = {
    "image": tf.constant([[[[0]]], [[[255]]]], tf.uint8),
    "label": tf.constant([1, 3]),
    "mix": tf.constant([-0.5, -0.5]),
}


def recipe(label_smoothing=0.0, **data):
    data = {"pp_train": "value_range(0, 1)", "pp_eval": "value_range(-1, 1)", **data}
    return recipes.Recipe(data=recipes.Data(**data), label_smoothing=label_smoothing, seed=7)


TASK = tasks.bind(recipe(label_smoothing=0.2), outputs=4)


def test_training_has_its_own_range_and_smooth_labels():
    images, labels = device_preprocessing.training_inputs(TASK)(BATCH, 0, 0)
    assert np.ravel(images).tolist() == [0.0, 1.0]
    np.testing.assert_allclose(labels, [[0.05, 0.85, 0.05, 0.05], [0.05, 0.05, 0.05, 0.85]], rtol=1e-6)


def test_evaluation_has_its_own_range_and_plain_labels():
    images, labels = device_preprocessing.evaluation_inputs(TASK)(BATCH)
    assert np.ravel(images).tolist() == [-1.0, 1.0]
    assert np.array(labels).tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]


def test_cutmix_box_differs_per_step():
    asked = []

    def center(seed, step):
        asked.append((seed, step))
        return tf.constant([0.5, 0.5])

    prepare = device_preprocessing.training_inputs(tasks.bind(recipe(cutmix=1.0), outputs=4), center)
    for step in (3, 4):
        prepare(BATCH, step, 0)
    (seed, first), (again, second) = asked
    assert (first, second) == (3, 4) and seed == again != 7  # apart from the draws of dropout


def test_centers_differ_by_seed_and_step():
    centers = [device_preprocessing.mix_center(seed, step).numpy() for seed, step in ((0, 0), (0, 1), (1, 0))]
    assert all(((center >= 0) & (center < 1)).all() for center in centers)
    assert all(center.shape == (2,) and center[0] != center[1] for center in centers)
    assert len({tuple(center) for center in centers}) == 3
