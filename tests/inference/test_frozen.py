"""Weights as constants: the same outputs, only where they pay."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import models
from keras_vit.inference import KerasClassifier, frozen
from tests import tiny

SPEC = tf.TensorSpec((None, tiny.SIZE, tiny.SIZE, 3), tf.float32)


@pytest.fixture
def images():
    return np.random.default_rng(0).uniform(-1, 1, (3, tiny.SIZE, tiny.SIZE, 3)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
def test_the_graph_has_constants_and_the_outputs_are_the_models(dtype, images):
    model = models.representation(tiny.model(dtype=dtype))
    function = frozen.function(model, SPEC)
    graph = function.graph.as_graph_def()
    assert not function.captured_inputs and "ReadVariableOp" not in {node.op for node in graph.node}
    tolerance = 1e-5 if dtype == "float32" else 0.02  # 8 significant bits, in another order of sums
    for found, expected in zip(function(tf.constant(images)), model(images), strict=True):
        found, expected = (np.asarray(keras.ops.cast(value, "float32")) for value in (found, expected))
        np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize(
    ("dtype", "instructions", "limit", "expected"),
    [
        ("mixed_bfloat16", True, 2**28, True),
        ("bfloat16", True, 2**28, True),
        ("float32", True, 2**28, False),
        ("mixed_bfloat16", False, 2**28, False),
        ("mixed_bfloat16", True, 10_000, False),
    ],
)
def test_where_it_pays(dtype, instructions, limit, expected, monkeypatch):
    monkeypatch.setattr(frozen, "_has_instructions", lambda: instructions)
    monkeypatch.setattr(frozen, "_MAX_BYTES", limit)
    assert frozen.pays(tiny.model(dtype=dtype)) == expected


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_classifiers_of_many_images(dtype, images, monkeypatch):
    monkeypatch.setattr(frozen, "_has_instructions", lambda: True)
    classifier = KerasClassifier(tiny.model(dtype=dtype), tiny.card())
    before = classifier.predict(images)
    classifier.prepare_for_many()
    after = classifier.predict(images)
    if dtype == "float32":
        np.testing.assert_array_equal(after, before)
    else:
        np.testing.assert_allclose(after, before, atol=0.02)
    for weight in classifier.model.weights:
        weight.assign(np.zeros(weight.shape))
    assert np.array_equal(classifier.predict(images), after) == (dtype == "mixed_bfloat16")
