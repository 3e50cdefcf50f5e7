"""The last block computes only those tokens that the output is made of."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.models import variants

READ = {"token": 1, "registers": 1, "every_layer": 1, "features": 1, "any_size": 1, "deit": 2, "hybrid": 1}
ALL = ["gap", "map", "all_tokens", "relative"]


def mlp_lengths(model, call, monkeypatch):
    """The numbers of tokens that the last block's MLP is given while `call` runs."""
    mlp, lengths = model.get_layer("encoderblock_1").mlp, []
    run = mlp.call

    def recording(x, **arguments):
        lengths.append(x.shape[1])
        return run(x, **arguments)

    monkeypatch.setattr(mlp, "call", recording)
    call()
    return lengths


@pytest.mark.parametrize("name", [*READ, *ALL])
def test_number_of_tokens(name, monkeypatch):
    model = variants.make(name)
    images = variants.images(model)
    length = model.get_layer("encoderblock_1").output.shape[1] or 9  # 8 patches and the class token of any size

    def call():
        model(images, training=True)
        model(images, training=False)

    assert mlp_lengths(model, call, monkeypatch) == [READ.get(name, length)] * 2


def value_and_gradients(model, images, of):
    with tf.GradientTape() as tape:
        value = model(images, training=True)
        loss = tf.reduce_sum(tf.cast(value, tf.float32) ** 2)
    return [value, *tape.gradient(loss, [variable.value for variable in of.trainable_variables])]


@pytest.mark.parametrize("arguments", [{}, {"remat": "blocks"}, {"attention_chunk_size": 4}])
@pytest.mark.parametrize("name", ["registers", "deit"])
def test_same_values_and_gradients(name, arguments):
    model = variants.make(name, **arguments)
    images = variants.images(model)
    whole = keras.Model(model.inputs[0], model.outputs[0])  # the same layers, of which none knows what is read
    for got, expected in zip(*(value_and_gradients(m, images, of=model) for m in (model, whole)), strict=True):
        # Sums over tokens whose derivative is 0 in other orders.
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * float(tf.reduce_max(tf.abs(expected))) + 1e-6)


@pytest.mark.parametrize("name", ["token", "deit", "hybrid", "any_size"])
def test_same_answers(name):
    model = variants.make(name)
    images = variants.images(model)
    whole = keras.Model(model.inputs[0], model.outputs[0])
    # Matrix products of other shapes round otherwise.
    np.testing.assert_allclose(model(images), whole(images), rtol=1e-5, atol=1e-5)


def test_tokens_themselves_stay_available():
    """A model that ends at the last block has all its tokens, in training as well."""
    model = variants.make("token")
    images = variants.images(model)
    model(images, training=True)
    tokens = keras.Model(model.inputs[0], model.get_layer("encoder_norm").output)
    np.testing.assert_allclose(tokens(images, training=True), tokens(images, training=False), rtol=1e-4, atol=1e-5)
