"""Regression by hand: losses of standardized numbers, errors in the unit of the data, refusals."""

import types

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.util.values import Values

STANDARD = Values(("age", "height"), mean=(40.0, 1.7), deviation=(10.0, 0.1))
AGES = np.float32([[50.0, 1.7], [40.0, 1.9]])


def task(loss="mse"):
    created = tasks.bind(recipes.Recipe(task=f"regression({loss!r})"), outputs=2)
    created.standard = STANDARD
    return created


def outputs(model_output, loss="mse"):
    """Metrics and predictions of a model that returns given standardized numbers."""
    created = task(loss)
    values = created.values(None, {"label": AGES})
    np.testing.assert_allclose(values[1], [[1.0, 0.0], [0.0, 2.0]], rtol=1e-5, atol=1e-5)
    found, predictions = created(lambda images, training: ops.convert_to_tensor(model_output), values, training=True)
    return {name: np.asarray(value) for name, value in found.items()}, np.asarray(predictions)


# Errors in standard deviations: 1 and 0, then 0.5 and 1.1.
PREDICTED = np.float32([[0.0, 0.0], [0.5, 0.9]])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("mse", [0.5, (0.25 + 1.21) / 2]), ("mae", [0.5, 0.8]), ("huber", [0.25, (0.125 + 0.6) / 2])],
)
def test_losses_match_hand_computation(loss, expected):
    found, predictions = outputs(PREDICTED, loss)
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-4)  # float32 heights of 1.7 and 1.9
    np.testing.assert_allclose(predictions, [[40.0, 1.7], [45.0, 1.79]], rtol=1e-6)
    np.testing.assert_allclose(found["standardized_mae"], [0.5, 0.8], rtol=1e-4)
    np.testing.assert_allclose(found["mae"], [(10.0 + 0.0) / 2, (5.0 + 0.11) / 2], rtol=1e-4)


def test_large_numbers_are_standardized_before_they_are_rounded():
    created, seconds = task(), 1.7e9 + np.arange(4.0)[:, None]
    created.standard = Values(("seconds",), mean=(1.7e9,), deviation=(2.0,))
    (batch,) = created.on_host(tf.data.Dataset.from_tensors({"label": seconds})).as_numpy_iterator()
    assert batch["label"].dtype == batch["standardized"].dtype == np.float32
    np.testing.assert_array_equal(created.values(None, batch)[1].ravel(), [0, 0.5, 1, 1.5])


def test_the_best_checkpoint_has_the_smallest_error():
    """Values with different units have equal weight."""
    score = recipes.parse_task("regression").score
    assert score.name == "standardized_mae"
    assert score.goodness(1.0) > score.goodness(2.0)
    assert recipes.parse_task("classification").score.goodness(1.0) < 2.0


def test_captions_are_in_the_unit_of_the_data():
    shown = task().show({"image": np.zeros((1, 2, 2, 3)), "predictions": AGES[:1], "label": AGES[1:]}, None)
    assert shown.captions == ["50, 1.7\n(is 40, 1.9)"]
    assert shown.right is None


def test_unknown_loss_is_refused():
    with pytest.raises(ValueError, match="`loss` must be one of 'mse', 'mae', 'huber'"):
        recipes.parse_task("regression('mape')")


@pytest.mark.parametrize("field", ["label_smoothing", "data.mixup", "data.cutmix"])
def test_settings_that_mix_classes_are_rejected(field):
    with pytest.raises(ValueError, match=f"{field} mixes labels of classes.*'regression'.*{field}=0.1"):
        recipes.check(recipes.replace(recipes.Recipe(), {"task": "regression", field: 0.1}))


@pytest.mark.parametrize(
    ("name", "kind", "count", "found"),
    [
        ("regression", "class", 3, "'class'.*task='classification'"),
        ("regression", "classes", 3, "'classes'.*task='multi_label' with loss='sigmoid'"),
        ("classification", "classes", 3, "'classes'.*task='multi_label'"),
        ("distillation('a')", "classes", 3, "'classes'.*task='multi_label'"),
        ("multi_label", "class", 3, "'class'.*task='classification'"),
        ("regression", "class", 0, "no labels.*task='masked_patch'"),
        ("classification", "values", 1, "'values'.*task='regression'"),
        ("classification", "class", 0, "no labels"),
    ],
)
def test_data_without_the_labels_of_the_task_are_refused(name, kind, count, found):
    recipe = recipes.Recipe(task=name, data=recipes.Data(source="folder:/images"))
    with pytest.raises(ValueError, match=f"learns from.*source='folder:/images', which has .*{found}"):
        tasks.bind(recipe, types.SimpleNamespace(label_kind=kind, num_outputs=count))


def test_tasks_without_labels_accept_any_data():
    recipe = recipes.Recipe(task="mae", model=recipes.Model("ViT-Ti/16", image_size=32))
    for kind in ("class", "classes", "values"):
        tasks.bind(recipe, types.SimpleNamespace(label_kind=kind, num_outputs=2))
