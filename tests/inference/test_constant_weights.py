"""Weights as constants: equal outputs, and only where they are faster."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import models
from keras_vit.inference import KerasPredictor, constant_weights
from tests import tiny

SPEC = tf.TensorSpec((None, tiny.SIZE, tiny.SIZE, 3), tf.float32)


@pytest.fixture
def images():
    return np.random.default_rng(0).uniform(-1, 1, (3, tiny.SIZE, tiny.SIZE, 3)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
def test_constant_weights_leave_the_outputs_unchanged(dtype, images):
    model = models.representation(tiny.model(dtype=dtype))
    function = constant_weights.function(model, SPEC)
    graph = function.graph.as_graph_def()
    assert not function.captured_inputs and "ReadVariableOp" not in {node.op for node in graph.node}
    tolerance = 1e-5 if dtype == "float32" else 0.02  # 8 significant bits, in another order of sums
    for found, expected in zip(function(tf.constant(images)), model(images), strict=True):
        found, expected = (np.asarray(keras.ops.cast(value, "float32")) for value in (found, expected))
        np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(
    ("dtype", "instructions", "expected"),
    [
        ("mixed_bfloat16", {"amx_bf16", "avx512_bf16"}, True),
        ("bfloat16", {"amx_bf16"}, True),
        ("mixed_bfloat16", {"avx512_bf16"}, False),  # too large
        ("float32", {"amx_bf16"}, False),
        ("mixed_bfloat16", set(), False),
    ],
)
def test_weights_are_constants_only_where_this_is_faster(dtype, instructions, expected, monkeypatch):
    monkeypatch.setattr(constant_weights, "_instructions", lambda: instructions)
    model = tiny.model(dtype=dtype)
    size = 2 * model.count_params()
    monkeypatch.setattr(constant_weights, "_MAX_BYTES", {"amx_bf16": size, "avx512_bf16": size - 1})
    assert constant_weights.pays(model) == expected


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_predictions_of_many_images_are_unchanged(dtype, images, monkeypatch):
    monkeypatch.setattr(constant_weights, "_instructions", lambda: {"amx_bf16"})
    predictor = KerasPredictor(tiny.model(dtype=dtype), tiny.card())
    before = predictor.predict(images)
    predictor.prepare_for_many()
    after = predictor.predict(images)
    if dtype == "float32":
        np.testing.assert_array_equal(after, before)
    else:
        np.testing.assert_allclose(after, before, atol=0.02)
    for weight in predictor.model.weights:
        weight.assign(np.zeros(weight.shape))
    assert np.array_equal(predictor.predict(images), after) == (dtype == "mixed_bfloat16")
