"""Backward passes that are written out, against differentiation op by op."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import GroupNorm, LayerNorm, MlpBlock, SelfAttention, gradients

tf = pytest.importorskip("tensorflow")
RNG = np.random.default_rng(0)


def random(*shape, dtype="float32"):
    return tf.cast(RNG.normal(size=shape), dtype)


def plain_attention(query, key, value):
    return ops.einsum("bhnm,bmhk->bnhk", ops.softmax(ops.einsum("bnhk,bmhk->bhnm", query, key), axis=-1), value)


def plain_norm(x, scale, bias):
    wide = ops.cast(x, "float32")
    centred = wide - ops.mean(wide, axis=-1, keepdims=True)
    variance = ops.mean(centred * centred, axis=-1, keepdims=True)
    return ops.cast(centred * ops.rsqrt(variance + 1e-6) * scale + bias, x.dtype)


def plain_group_norm(x, scale, bias):
    batch, height, width, channels = x.shape
    grouped = ops.reshape(ops.cast(x, "float32"), (batch, height * width, 4, channels // 4))
    centred = grouped - ops.mean(grouped, axis=(1, 3), keepdims=True)
    variance = ops.mean(centred * centred, axis=(1, 3), keepdims=True)
    normalised = ops.reshape(centred * ops.rsqrt(variance + 1e-6), x.shape)
    return ops.cast(normalised * scale + bias, x.dtype)


def value_and_gradients(function, arguments, upstream):
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        value = function(*arguments)
    return value, tape.gradient(value, arguments, output_gradients=upstream)


def assert_same(written, plain, arguments, rtol, atol):
    upstream = random(*plain(*arguments).shape, dtype=arguments[0].dtype)
    value, got = value_and_gradients(written, arguments, upstream)
    expected_value, expected = value_and_gradients(plain, arguments, upstream)
    for first, second in zip([value, *got], [expected_value, *expected], strict=True):
        assert first.dtype == second.dtype and first.shape == second.shape
        np.testing.assert_allclose(tf.cast(first, tf.float64), tf.cast(second, tf.float64), rtol=rtol, atol=atol)


@pytest.mark.parametrize("tokens", [(5, 5), (1, 7)])
def test_attention(tokens):
    queries, keys = tokens
    arguments = [random(2, queries, 3, 4), random(2, keys, 3, 4), random(2, keys, 3, 4)]
    # Other orders of summation in float32.
    assert_same(gradients.attend, plain_attention, arguments, rtol=1e-5, atol=1e-6)


def test_layer_norm():
    arguments = [random(2, 5, 16) * 3 + 1, random(16), random(16)]
    assert_same(lambda *a: gradients.layer_norm(*a, 1e-6), plain_norm, arguments, rtol=1e-5, atol=2e-6)


def plain_norm_dense(x, scale, bias, kernel, offset):
    return ops.matmul(plain_norm(x, scale, bias), kernel) + offset


def test_layer_norm_and_dense():
    arguments = [random(2, 5, 16) * 3 + 1, random(16), random(16), random(16, 24), random(24)]
    assert_same(
        lambda *a: gradients.norm_dense(*a, 1e-6),
        plain_norm_dense,
        arguments,
        rtol=1e-5,
        atol=2e-5,  # of sums of up to 24 products of numbers up to 3 each
    )


def plain_projections(x, kernel, bias=None):
    projected = ops.einsum("bnd,dthk->tbnhk", x, kernel)
    return projected if bias is None else projected + bias[:, None, None]


@pytest.mark.parametrize("biased", [True, False])
def test_projections(biased):
    arguments = [random(2, 5, 6), random(6, 3, 2, 4), random(3, 2, 4)][: 3 if biased else 2]
    # Other orders of summation in float32.
    assert_same(lambda *a: ops.stack(gradients.project(*a)), plain_projections, arguments, rtol=1e-5, atol=1e-5)


def test_group_norm():
    arguments = [random(2, 3, 5, 16) * 3 + 1, random(16), random(16)]
    assert_same(lambda *a: gradients.group_norm(*a, 4, 1e-6), plain_group_norm, arguments, rtol=1e-5, atol=3e-6)


def test_group_norm_of_a_nearly_constant_picture():
    """A mean a thousand times the deviation: sums of what is not centred would lose three of seven digits."""
    arguments = [1000 + random(2, 3, 5, 16), random(16), random(16)]
    # The mean itself is off by 1e3 * 2^-24 = 6e-5 in either form.
    assert_same(lambda *a: gradients.group_norm(*a, 4, 1e-6), plain_group_norm, arguments, rtol=1e-3, atol=1e-3)


def test_in_bfloat16_to_its_precision():
    attention = [random(2, 5, 3, 4, dtype="bfloat16") for _ in range(3)]
    # 8 bits, of which the plain form loses some to the weights' derivative: both may be 2 or 3 units off.
    assert_same(gradients.attend, plain_attention, attention, rtol=0.05, atol=0.05)
    norm = [random(2, 5, 16, dtype="bfloat16") * 3 + 1, random(16), random(16)]
    assert_same(lambda *a: gradients.layer_norm(*a, 1e-6), plain_norm, norm, rtol=0.02, atol=0.05)
    both = [*norm, random(16, 24, dtype="bfloat16"), random(24, dtype="bfloat16")]
    # Sums of 24 and of 10 numbers up to 30 that were rounded to 8 bits before.
    assert_same(lambda *a: gradients.norm_dense(*a, 1e-6), plain_norm_dense, both, rtol=0.05, atol=0.5)
    norm = [random(2, 3, 5, 16, dtype="bfloat16") * 3 + 1, random(16), random(16)]
    assert_same(lambda *a: gradients.group_norm(*a, 4, 1e-6), plain_group_norm, norm, rtol=0.02, atol=0.05)


def test_one_pass_keeps_the_precision_of_its_input():
    """A mean a hundred times the deviation, of numbers with 8 bits: E[x^2] - E[x]^2 is off by 1e4 * 2^-23 at most."""
    x = tf.cast(100.0 + RNG.choice([-1.0, 1.0], size=(4, 64)), tf.bfloat16)
    ones, zeros = tf.ones(64), tf.zeros(64)
    got = gradients.layer_norm(x, ones, zeros, 1e-6)
    np.testing.assert_allclose(tf.cast(got, tf.float32), tf.cast(plain_norm(x, ones, zeros), tf.float32), atol=0.01)


def test_layers_use_them_in_training_and_give_the_same():
    for layer, x in (
        (LayerNorm(), random(2, 5, 8)),
        (GroupNorm(4), random(2, 5, 3, 8)),
        (SelfAttention(2), random(2, 5, 8)),
    ):
        layer.build(x.shape)
        for weight in layer.weights:
            weight.assign(weight + keras.random.normal(weight.shape, stddev=0.1, seed=1))
        upstream = random(*x.shape)
        results = []
        for training in (False, True):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=training)
            weights = [weight.value for weight in layer.trainable_weights]
            results.append([y, *tape.gradient(y, [x, *weights], output_gradients=upstream)])
        for plain, written in zip(*results, strict=True):
            np.testing.assert_allclose(written, plain, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("layer", "shape"), [(MlpBlock(8), (2, 3, 4)), (LayerNorm(), (2, 3, 4)), (GroupNorm(2), (2, 3, 3, 4))]
)
def test_what_is_computed_again_is_not_kept(layer, shape, monkeypatch):
    """TensorFlow's graph optimiser makes one of two equal computations, and keeps the result in between."""
    from tensorflow.python.eager import context  # what the graph optimiser made is not to be had otherwise

    layer.build(shape)

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        return tape.gradient(y, x, output_gradients=y)

    def operations():
        context.enable_run_metadata()
        try:
            tf.function(gradient)(random(*shape))
            graphs = context.export_run_metadata().function_graphs
        finally:
            context.disable_run_metadata()
        return max(sum(node.op != "Identity" for node in graph.post_optimization_graph.node) for graph in graphs)

    computed_again = operations()
    monkeypatch.setattr(gradients, "later", lambda upstream, *tensors: tensors)
    assert computed_again > operations()
