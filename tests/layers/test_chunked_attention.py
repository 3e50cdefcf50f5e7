"""Attention in chunks: the same values and gradients as without chunks, with memory that is not quadratic."""

import math
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import layers
from tests import forked, half_precision

TOKENS, WIDTH, HEADS = 50, 16, 2


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def values_and_gradients(chunk_size, policy="float32", tokens=TOKENS, compiled=False, context=None, xla=None):
    layer = layers.SelfAttention(HEADS, chunk_size=chunk_size, dtype=policy)
    layer.build((None, tokens, WIDTH))
    for index, weight in enumerate(layer.weights):
        weight.assign(0.5 * normal(*weight.shape, seed=index))
    x = tf.constant(normal(3, tokens, WIDTH, seed=100))

    def run(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(tf.cast(x, layer.compute_dtype), context, training=True)
            loss = tf.reduce_sum(tf.cast(y, tf.float32) * upstream)
        return [
            tf.cast(y, tf.float32),
            *tape.gradient(loss, [x, *(weight.value for weight in layer.trainable_weights)]),
        ]

    upstream = tf.constant(normal(3, tokens, WIDTH, seed=101))
    if compiled:
        signature = [tf.TensorSpec(x.shape if xla else (None, None, WIDTH), tf.float32)] * 2
        run = tf.function(run, input_signature=signature, jit_compile=xla)
    return [value.numpy() for value in run(x, upstream)]


def assert_close(got, expected):
    """Equal to float32 rounding of the sums: relative to the largest value of all, since the gradient of the key's bias
    is zero (it shifts all logits of a query alike), and what remains of it is rounding."""
    scale = max(np.abs(wanted).max() for wanted in expected)
    for value, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=2e-6 * scale)


# 50 tokens: a divisor, one that leaves a rest, single queries, and one fewer than there are.
@pytest.mark.slow
@pytest.mark.parametrize("chunk_size", [25, 16, 1, 49])
def test_chunked_attention_equals_whole_attention(chunk_size):
    assert_close(values_and_gradients(chunk_size), values_and_gradients(None))


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [dict(compiled=True), dict(compiled=True, xla=True)], ids=["graph", "XLA"])
def test_compiled_chunked_attention_equals_whole_attention(compiled):
    """In graphs also for shapes that are known at run time only."""
    assert_close(values_and_gradients(16, **compiled), values_and_gradients(None))


@pytest.mark.slow
def test_half_precision_is_as_accurate_as_whole_attention():
    """Rounding to bfloat16 differs between the two; neither may be further from float32 than twice the other."""
    exact = values_and_gradients(None)
    at_once = values_and_gradients(None, "mixed_bfloat16")
    for value, other, wanted in zip(values_and_gradients(16, "mixed_bfloat16"), at_once, exact, strict=True):
        error, usual = np.abs(value - wanted).mean(), np.abs(other - wanted).mean()
        assert error <= 2 * usual + 1e-6


def test_cross_attention_is_chunked():
    context = tf.constant(normal(3, 70, WIDTH, seed=200))
    assert_close(values_and_gradients(16, context=context), values_and_gradients(None, context=context))


def test_scores_include_all_queries():
    layer = layers.SelfAttention(HEADS, chunk_size=16)
    x = normal(2, TOKENS, WIDTH)
    output, scores = layer(x, return_attention_scores=True)
    whole = layers.SelfAttention(HEADS)
    whole.build(x.shape)
    whole.set_weights(layer.get_weights())
    query, key = (np.asarray(getattr(whole, name)(x)) for name in ("query", "key"))  # [B, N, H, K]
    logits = np.einsum("bnhk,bmhk->bhnm", query, key) / (WIDTH / HEADS) ** 0.5
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(whole(x), output, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output, layer(x), rtol=1e-4, atol=1e-5)  # sums in another order


def small(**arguments):
    sizes = {"image_size": 64, "patch_size": 8, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 32}
    return keras_vit.VisionTransformer(**{**sizes, "classes": 5, **arguments})


@pytest.mark.slow
def test_models_pass_the_chunk_size_to_their_blocks(tmp_path):
    whole, images = small(), normal(2, 64, 64, 3)
    model = small(attention_chunk_size=20, remat="blocks")
    weights = [normal(*weight.shape, seed=index) / 4 for index, weight in enumerate(whole.get_weights())]
    whole.set_weights(weights)
    model.set_weights(weights)
    assert model.get_layer("encoderblock_0").attention.chunk_size == 20
    np.testing.assert_allclose(np.array(model(images)), np.array(whole(images)), rtol=1e-4, atol=1e-5)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(images, training=True) ** 2)
    gradients = tape.gradient(loss, [weight.value for weight in model.trainable_weights])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(whole(images, training=True) ** 2)
    for value, wanted in zip(
        gradients, tape.gradient(loss, [weight.value for weight in whole.trainable_weights]), strict=True
    ):
        # float32 through a block; small parts of a gradient are differences of large ones.
        np.testing.assert_allclose(value, wanted, rtol=1e-3, atol=1e-5 * np.abs(wanted).max() + 1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.get_config()["attention_chunk_size"] == 20
    np.testing.assert_array_equal(np.array(loaded(images)), np.array(model(images)))


@pytest.mark.slow
def test_chunk_size_is_used_for_images_of_any_size():
    model, whole = small(image_size=None, attention_chunk_size=20), small(image_size=None)
    whole.set_weights(model.get_weights())
    images = normal(1, 48, 80, 3)
    np.testing.assert_allclose(np.array(model(images)), np.array(whole(images)), rtol=1e-4, atol=1e-5)


def test_incompatible_arguments_are_refused():
    for arguments in ({"dropout_rate": 0.1}, {"relative_positions": 5}):
        with pytest.raises(ValueError, match="chunk_size=4"):
            layers.SelfAttention(2, chunk_size=4, **arguments)
    for arguments in ({"attention_dropout_rate": 0.1}, {"position_embedding": "relative"}):
        with pytest.raises(ValueError, match="attention_chunk_size=4"):
            small(attention_chunk_size=4, **arguments)
    with pytest.raises(ValueError, match="chunk_size"):
        layers.SelfAttention(2, chunk_size=0)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak of a process is read from /proc")
def test_memory_is_not_quadratic_in_the_tokens():
    """6,000 tokens and two heads have 288 MB of float32 weights; 64 queries at a time have 3 MB."""

    def run(chunk_size):
        code, output = forked.run("tests.layers.attention_memory", chunk_size)
        assert code == 0, output
        return float(output.split()[-1])

    assert run(6000) > 288
    # A few blocks of weights and the sequences themselves; without AVX-512 the allocator keeps up to 90 MB more.
    assert run(64) < (30 if half_precision.sums_are_exact() else 144)


@pytest.mark.slow
def test_more_than_1024_tokens_are_chunked_by_default():
    """Of 1,050 tokens: the same up to rounding, and the gradient saves no weights."""
    automatic, at_once = (values_and_gradients(size, tokens=1050, compiled=True, xla=False) for size in (None, 1050))
    assert_close(automatic, at_once)

    def largest(chunk_size, tokens=1050, **arguments):
        layer = layers.SelfAttention(HEADS, chunk_size=chunk_size, **arguments)
        layer.build((None, tokens, WIDTH))
        graph = tf.function(layer).get_concrete_function(tf.TensorSpec((1, tokens, WIDTH)), training=True).graph
        bodies = [graph, *(function.graph for function in graph._functions.values() if hasattr(function, "graph"))]
        shapes = [output.shape for body in bodies for node in body.get_operations() for output in node.outputs]
        return max(math.prod(shape) for shape in shapes if shape.is_fully_defined())

    weights = HEADS * 1050**2
    assert largest(None) < weights / 4
    assert largest(1050) >= weights
    assert largest(None, dropout_rate=0.1) >= weights
    assert largest(None, tokens=1024) >= HEADS * 1024**2
