"""Results of TensorFlow Addons 0.23, reproduced by its successors in `docs/migration/tensorflow_addons.md`."""

import pathlib
import re

import keras
import numpy as np
import pytest

from keras_vit import optim
from tests import golden_data

RATE = 0.01  # of the AdamW, SGDW and LAMB records
DECAY = 0.001  # of the AdamW and SGDW records: Addons subtracts DECAY * w in each step
AVERAGE_RATE, AVERAGE_DECAY = 0.1, 0.9  # of the moving-average record, over plain gradient descent


@pytest.fixture(scope="module")
def addons():
    return golden_data.load("addons")


@pytest.fixture(scope="module")
def documented():
    """Names that the Python blocks of the document define."""
    document = pathlib.Path(__file__).parent.parent / "docs" / "migration" / "tensorflow_addons.md"
    text = document.read_text(encoding="utf-8")
    names = {"__name__": "documented"}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, str(document), "exec"), names)
    return names


def steps(optimizer, start, gradients):
    """The weights after each step."""
    weight = keras.Variable(start)
    optimizer.build([weight])
    after = []
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [weight])
        after.append(np.array(weight))
    return np.stack(after)


@pytest.mark.parametrize(("approximate", "record"), [(True, "gelu_tanh"), (False, "gelu_erf")])
def test_keras_gelu_matches_addons(addons, approximate, record):
    y = keras.activations.gelu(addons["gelu_x"], approximate=approximate)
    np.testing.assert_allclose(y, addons[record], rtol=1e-6, atol=1e-6)  # float32 rounding of values up to 6


def test_exact_and_approximate_gelu_differ(addons):
    assert np.max(np.abs(addons["gelu_tanh"] - addons["gelu_erf"])) > 1e-4


def group_norm(addons, **arguments):
    layer = keras.layers.GroupNormalization(**arguments)
    layer.build(addons["gn_x"].shape)
    layer.set_weights([addons["gn_gamma"], addons["gn_beta"]])
    return np.array(layer(addons["gn_x"]))


def test_keras_group_normalization_matches_addons(addons):
    y = group_norm(addons, groups=32, epsilon=1e-5)
    np.testing.assert_allclose(y, addons["gn_y"], rtol=1e-5, atol=1e-5)  # float32 rounding
    assert np.max(np.abs(group_norm(addons, groups=32) - addons["gn_y"])) > 1e-3  # the default epsilon is another


@pytest.mark.parametrize(
    ("name", "optimizer", "arguments"),
    [("adamw", keras.optimizers.AdamW, {}), ("sgdw", keras.optimizers.SGD, {"momentum": 0.9})],
)
def test_decoupled_weight_decay_is_divided_by_the_rate(addons, name, optimizer, arguments):
    start, gradients, expected = (addons[f"{name}_{part}"] for part in ("w0", "grads", "w"))
    translated = steps(optimizer(RATE, weight_decay=DECAY / RATE, **arguments), start, gradients)
    np.testing.assert_allclose(translated, expected, rtol=2e-6, atol=2e-6)  # Adam's rounding, over six steps
    unchanged = steps(optimizer(RATE, weight_decay=DECAY, **arguments), start, gradients)
    assert np.max(np.abs(unchanged - expected)) > 1e-3


def test_decay_in_a_schedule_follows_the_rate_in_keras_only():
    # With a gradient of zero only the decay is left. Half the rate: Keras decays half as much, Addons would not.
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [RATE, RATE / 2])
    weights = steps(keras.optimizers.SGD(schedule, weight_decay=DECAY / RATE), np.ones(1, "float32"), np.zeros((2, 1)))
    np.testing.assert_allclose(weights[:, 0], [1 - DECAY, (1 - DECAY) * (1 - DECAY / 2)], rtol=1e-6)


def test_documented_lamb_matches_addons(addons, documented):
    start, gradients, expected = addons["lamb_w0"], addons["lamb_grads"], addons["lamb_w"]
    ours = steps(documented["AddonsLamb"](RATE, weight_decay=0.01, epsilon=1e-6), start, gradients)
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)  # float32 rounding
    keras_core = steps(keras.optimizers.Lamb(RATE, weight_decay=0.01, epsilon=1e-6), start, gradients)
    assert 1e-5 < np.max(np.abs(keras_core - expected)) < 1e-3  # close, not equal: the decay is outside of the ratio


def test_lamb_without_decay_matches_keras(addons, documented):
    start, gradients = addons["lamb_w0"], addons["lamb_grads"]
    ours = steps(documented["AddonsLamb"](RATE, epsilon=1e-6), start, gradients)
    np.testing.assert_allclose(ours, steps(keras.optimizers.Lamb(RATE, epsilon=1e-6), start, gradients), atol=1e-6)


def test_moving_average_matches_addons(addons):
    start, gradients, expected = addons["ema_w0"], addons["ema_grads"], addons["ema_average"]
    weights = steps(keras.optimizers.SGD(AVERAGE_RATE), start, gradients)
    average = start
    for weight, average_expected in zip(weights, expected, strict=True):
        average = optim.update_average(average, weight, AVERAGE_DECAY)
        np.testing.assert_allclose(average, average_expected, rtol=1e-6, atol=1e-6)  # float32 rounding


def test_moving_average_of_keras_starts_one_step_later(addons):
    start, gradients, expected = addons["ema_w0"], addons["ema_grads"], addons["ema_average"]
    first = steps(keras.optimizers.SGD(AVERAGE_RATE), start, gradients)[0]
    for count in range(1, len(gradients) + 1):
        optimizer = keras.optimizers.SGD(AVERAGE_RATE, use_ema=True, ema_momentum=AVERAGE_DECAY)
        weight = keras.Variable(start)
        optimizer.build([weight])
        for gradient in gradients[:count]:
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [weight])
        optimizer.finalize_variable_values([weight])  # overwrites the weight by its average
        translated = np.array(weight) + AVERAGE_DECAY**count * (start - first)
        np.testing.assert_allclose(translated, expected[count - 1], rtol=1e-6, atol=1e-6)  # float32 rounding


def test_keras_f1_score_matches_addons(addons):
    metric = keras.metrics.F1Score(average="macro")
    metric.update_state(np.eye(3, dtype="float32")[addons["f1_y"]], addons["f1_p"])
    np.testing.assert_allclose(metric.result(), addons["f1"], rtol=1e-6)


def test_documented_cohen_kappa_matches_addons(addons, documented):
    confusion = np.zeros((3, 3))
    np.add.at(confusion, (addons["f1_y"], addons["f1_p"].argmax(axis=1)), 1)
    np.testing.assert_allclose(documented["cohen_kappa"](confusion), addons["kappa"], rtol=1e-6)
