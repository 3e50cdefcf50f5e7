"""The last block computes only those tokens that the output depends on."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import selection
from tests.models import variants

READ = {
    "token": 1,
    "registers": 1,
    "every_layer": 1,
    "features": 1,
    "any_size": 1,
    "deit": 2,
    "hybrid": 1,
    "shared": 1,
    "dinov3": 1,
}
ALL = ["gap", "map", "all_tokens", "relative", "rms"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*READ, *ALL])
def test_last_block_computes_only_the_tokens_that_are_read(name, monkeypatch):
    model = variants.shared(name)
    images = variants.images(model)
    block = model.get_layer("encoderblock_1")
    all_tokens = block.output.shape[1]
    assert all_tokens == (None if name == "any_size" else model.config.num_tokens)
    expected = READ.get(name, all_tokens)
    lengths, run = [], block.mlp.call

    def recording(x, **arguments):
        lengths.append(x.shape[1])
        return run(x, **arguments)

    monkeypatch.setattr(block.mlp, "call", recording)
    model(images, training=True)
    model(images, training=False)
    assert lengths == [expected] * 2
    if name != "all_tokens":
        pooling = model.get_layer({"map": "MAPHead_0", "rms": "pool_token"}.get(name, "pool"))
        assert pooling.input.shape[1] == expected  # as the graph says


def value_and_gradients(model, images):
    with tf.GradientTape() as tape:
        value = model(images, training=True)
        loss = tf.reduce_sum((0.2 * tf.cast(value, tf.float32)) ** 2)  # outputs of a few units
    return [value, *tape.gradient(loss, [variable.value for variable in model.trainable_variables])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    selection.cases(
        [
            (name, arguments)
            for name in ("registers", "deit")
            for arguments in ({}, {"remat": "blocks"}, {"attention_chunk_size": 4})
        ],
        lambda name, arguments: name == "deit" or not arguments,
        selection.EXHAUSTIVE,
    ),
)
def test_values_and_gradients_equal_the_results_of_the_whole_block(name, arguments):
    model, whole = variants.make(name, **arguments), variants.make_whole(name, **arguments)
    images = variants.images(model)
    assert whole.get_layer("pool").input.shape[1] == whole.config.num_tokens
    for got, expected in zip(*(value_and_gradients(m, images) for m in (model, whole)), strict=True):
        # Sums over tokens whose derivative is 0 in other orders.
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * float(tf.reduce_max(tf.abs(expected))) + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", selection.cases(["token", "deit", "hybrid", "any_size"], ["hybrid", "any_size"], selection.EXHAUSTIVE)
)
def test_predictions_equal_the_predictions_of_the_whole_block(name):
    model, whole = variants.shared(name), variants.make_whole(name)
    images = variants.images(model)
    # Matrix products of other shapes round otherwise.
    np.testing.assert_allclose(model(images), whole(images), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["token", "deit", "shared"])
def test_all_tokens_of_the_last_block_remain_available(name, tmp_path):
    """A model that ends at the last norm has all its tokens, in training as well, and after it was saved."""
    model = variants.shared(name)
    images = variants.images(model)
    model(images, training=True)
    tokens = keras.Model(model.inputs[0], model.get_layer("encoder_norm").output)
    assert tokens.output_shape == (None, model.config.num_tokens, 16)
    expected = tokens(images)
    assert expected.shape == (2, model.config.num_tokens, 16)
    np.testing.assert_array_equal(tokens(images, training=True), expected)
    if name == "token":
        tokens.save(tmp_path / "tokens.keras")
        np.testing.assert_array_equal(keras.models.load_model(tmp_path / "tokens.keras")(images), expected)
