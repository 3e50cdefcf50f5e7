"""The private API of Keras that this package uses, each with the behavior that it relies on.

The nightly tests run this file with the newest version of Keras.
"""

import ast
import pathlib

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import Dense, keras_private

ROOT = pathlib.Path(keras_vit.__file__).parent
ARRAY = keras.ops.convert_to_numpy
PRIVATE = {"_flatten_layers", "_trainable_variables", "_kernel", "_tracker", "_untrack_variable", "_run_through_graph"}
PRIVATE |= {"_nodes_by_depth", "_get_kernel_with_merged_lora", "_layers", "_inbound_nodes", "_non_trainable_variables"}


def private_names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ClassDef):
            yield from (method.name for method in node.body if isinstance(method, ast.FunctionDef))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != "_kernel":  # in files
            yield node.value


def test_no_other_module_uses_the_private_api():
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert "keras.src" not in text, path
        if path.name != "keras_private.py":
            assert not PRIVATE & set(private_names(ast.parse(text))), path


@pytest.fixture
def dense():
    layer = Dense(3, name="inner")
    layer.build((None, 2))
    return layer


@pytest.fixture
def model():
    inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, name="a"), keras.layers.Dropout(0.1, name="b")])
    return keras.Sequential([keras.Input((2,)), inner, keras.layers.Dense(1, name="c")], name="outer")


def test_all_layers_are_listed(model):
    names = [layer.name for layer in keras_private.all_layers(model)]
    assert names[0] == "outer" and {"a", "b", "c"} < set(names)
    assert names.index(model.layers[0].name) < names.index("a")
    direct = [layer.name for layer in keras_private.direct_sublayers(model)]
    assert "c" in direct and "a" not in direct


def test_variables_of_a_layer_exclude_variables_of_sublayers(dense, model):
    assert keras_private.own_trainable_variables(dense) == [dense.kernel, dense.bias]
    dense.trainable = False
    assert keras_private.own_trainable_variables(dense) == [dense.kernel, dense.bias]
    assert keras_private.own_trainable_variables(model) == []


def test_variables_can_be_added_and_removed(dense):
    with keras_private.adding_variables(dense):
        dense.extra = dense.add_weight((1,), name="extra")
    assert [weight.name for weight in dense.trainable_weights] == ["kernel", "bias", "extra"]
    keras_private.remove_variable(dense, dense.extra)
    assert [weight.name for weight in dense.trainable_weights] == ["kernel", "bias"]
    with pytest.raises(ValueError, match="cannot add"):
        dense.other = dense.add_weight((1,), name="other")
    with pytest.raises(KeyError), keras_private.adding_variables(dense):
        raise KeyError
    with pytest.raises(ValueError, match="cannot add"):  # also after an error
        dense.other = dense.add_weight((1,), name="other")


@pytest.mark.parametrize("mode", [None, "int8"])
def test_stored_and_merged_kernels_differ_by_lora(dense, mode):
    if mode:
        dense.quantize(mode)
    stored = ARRAY(keras_private.stored_kernel(dense))
    dense.enable_lora(1, b_initializer="ones")
    np.testing.assert_array_equal(keras_private.stored_kernel(dense), stored)
    assert not keras_private.stored_kernel(dense).trainable
    x = np.ones((1, 2), "float32")
    expected = ARRAY(dense(x))
    store = {}
    dense.save_own_variables(store)
    merged = ARRAY(store["0"]) / ARRAY(store["2"]) if mode else ARRAY(store["0"])
    np.testing.assert_allclose(x @ merged + ARRAY(dense.bias), expected, atol=0.05 if mode else 1e-6)


def test_run_functional_calls_every_layer_in_order():
    images = keras.Input((2,))
    model = keras.Model(images, keras.layers.Dense(3, name="d")(keras.layers.Dense(2, name="c")(images)))
    seen = []

    def call(layer, *args, **kwargs):
        seen.append(layer.name)
        return layer(*args, **kwargs)

    x = keras.ops.ones((1, 2))
    np.testing.assert_array_equal(keras_private.run_functional(model, [x], call), model(x))
    assert seen == ["c", "d"]
