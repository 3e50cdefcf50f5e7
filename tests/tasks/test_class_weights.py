"""Weights of classes in the loss, by algebra: with balance 1, the mean over images is the mean over classes."""

import types

import numpy as np
import pytest
from scipy import special

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.tasks.classification import class_weights

LABELS = np.repeat([0, 1, 2], [8, 1, 3])
LOGITS = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
LOSSES = -np.take_along_axis(special.log_softmax(LOGITS, -1), LABELS[:, None], -1)[:, 0]


def task(balance):
    source = types.SimpleNamespace(
        labels=lambda: LABELS, num_classes=3, num_outputs=3, class_names=("a", "b", "c"), label_kind="class", name="toy"
    )
    return tasks.bind(recipes.Recipe(class_weight_exponent=balance), source)


def losses(balance, shares, training=True):
    model = lambda images, training: images  # noqa: E731
    metrics, _ = task(balance)(model, (LOGITS, shares.astype(np.float32)), training)
    return np.asarray(metrics["loss"])


def test_all_classes_have_equal_weight():
    found = losses(1.0, np.eye(3)[LABELS])
    assert found.mean() == pytest.approx(np.mean([LOSSES[label == LABELS].mean() for label in range(3)]), rel=1e-5)


def test_mixed_labels_have_the_weight_of_each_of_their_classes():
    shares = 0.75 * np.eye(3)[LABELS] + 0.25 * np.eye(3)[LABELS[::-1]]
    weights = 12 / 3 / np.array([8, 1, 3])
    wanted = -(weights * shares * special.log_softmax(LOGITS, -1)).sum(-1)
    np.testing.assert_allclose(losses(1.0, shares), wanted, rtol=1e-5)  # float32


def test_evaluations_are_not_weighted():
    np.testing.assert_allclose(losses(1.0, np.eye(3)[LABELS], training=False), LOSSES, rtol=1e-5)  # float32


@pytest.mark.parametrize("balance", [0.5, 1.0, 2.0])
def test_weights_are_powers_of_the_counts_and_one_on_average(balance):
    counts = np.array([8, 1, 0, 3])
    weights = class_weights(counts, balance)
    assert weights @ counts / counts.sum() == pytest.approx(1.0)
    assert weights[1] / weights[0] == pytest.approx(8**balance)
    assert weights[2] == 0.0  # a class without images


def test_data_that_cannot_be_balanced_are_rejected():
    several = {"task": "multi_label", "loss": "sigmoid"}
    for fields in ({"task": "mae"}, {"loss": "sigmoid"}, {"task": "regression"}, several):
        recipe = recipes.Recipe(class_weight_exponent=1.0, **fields)
        with pytest.raises(ValueError, match="class_weight_exponent weights the classes"):
            recipe.task.check(recipe)
