"""The layers against closed forms: what each computes, its shapes, its errors, its round trip."""

import inspect
import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit import layers
from tests import selection
from tests.layers.test_masking import WITH_PLACES


def array(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def test_patch_encoder_is_a_matrix_product_of_flattened_patches():
    layer = layers.PatchEncoder((4, 2), 5)
    images = normal(2, 8, 6, 3)
    tokens = array(layer(images))
    patches = images.reshape(2, 2, 4, 3, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 6, 4 * 2 * 3)  # raster order
    expected = patches @ array(layer.kernel).reshape(-1, 5) + array(layer.bias)
    np.testing.assert_allclose(tokens, expected, rtol=1e-5, atol=1e-5)  # float32 sums of 24 products
    grid = layers.PatchEncoder((4, 2), 5, flatten=False)
    assert grid(images).shape == (2, 2, 3, 5)
    assert layers.FlattenGrid()(grid(images)).shape == (2, 6, 5)


def test_patch_encoder_refuses_partial_patches():
    with pytest.raises(ValueError, match="whole number of patches.*224, 230"):
        layers.PatchEncoder(16, 8)(np.zeros((1, 224, 230, 3), "float32"))
    layer = layers.PatchEncoder(4, 8)
    assert layer.compute_output_shape((None, 12, 8, 3)) == (None, 6, 8)
    assert layer.compute_output_shape((1, None, 8, 3)) == layer.compute_output_shape((1, 8, None, 3)) == (1, None, 8)
    with pytest.raises(ValueError, match=r"whole number of patches.*\(8, 0\)"):
        layer.build((1, 8, 0, 3))
    layer(np.zeros((1, 8, 8, 3), "float32"))
    with pytest.raises(ValueError):
        layer(np.zeros((1, 8, 8, 4), "float32"))


def test_class_and_register_tokens_are_inserted_at_their_positions():
    x = normal(2, 4, 6)
    cls, registers = layers.ClassToken(name="cls"), layers.RegisterTokens(2, position=1)
    y = cls(x)
    assert [v.path for v in cls.weights] == ["cls/cls"]
    np.testing.assert_array_equal(array(y)[:, 0], 0)
    np.testing.assert_array_equal(array(y)[:, 1:], x)
    z = array(registers(y))
    assert z.shape == (2, 7, 6)
    np.testing.assert_array_equal(z[:, 1:3], np.broadcast_to(array(registers.tokens), (2, 2, 6)))
    np.testing.assert_array_equal(np.delete(z, [1, 2], axis=1), array(y))


def test_layer_norm_matches_the_formula():
    layer = layers.LayerNorm()
    x = normal(3, 5, 16) * 3 + 7
    layer.build(x.shape)
    scale, bias = normal(16, seed=1), normal(16, seed=2)
    layer.scale.assign(scale)
    layer.bias.assign(bias)
    double = x.astype("float64")
    expected = (double - double.mean(-1, keepdims=True)) / np.sqrt(double.var(-1, keepdims=True) + 1e-6) * scale + bias
    np.testing.assert_allclose(array(layer(x)), expected, rtol=1e-5, atol=1e-5)  # float32 against float64


def test_norms_compute_float32_statistics_under_bfloat16():
    """With a mean of 1000 and deviations of 1, statistics in bfloat16 (8 bits) would be noise."""
    x = np.float32(1000) + np.arange(64, dtype="float32").reshape(1, 1, 64) * 8  # exact in bfloat16
    expected = (x - x.mean()) / x.std()
    for norm in (layers.LayerNorm(dtype="mixed_bfloat16"), layers.GroupNorm(groups=1, dtype="mixed_bfloat16")):
        got = array(norm(x if isinstance(norm, layers.LayerNorm) else x[:, np.newaxis]))
        np.testing.assert_allclose(got.ravel(), expected.ravel(), atol=1e-2)  # one rounding of the result to bfloat16


@pytest.mark.parametrize("groups", [1, 4, 32])
def test_group_norm_matches_the_formula(groups):
    layer = layers.GroupNorm(groups, epsilon=1e-5)
    x = normal(2, 5, 3, 64) * 2 + 1
    layer.build(x.shape)
    scale, bias = normal(64, seed=1), normal(64, seed=2)
    layer.scale.assign(scale)
    layer.bias.assign(bias)
    g = x.astype("float64").reshape(2, 15, groups, 64 // groups)
    mean, variance = g.mean((1, 3), keepdims=True), g.var((1, 3), keepdims=True)
    expected = ((g - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape) * scale + bias
    np.testing.assert_allclose(array(layer(x)), expected, rtol=1e-5, atol=1e-5)


def test_group_norm_matches_golden_values(golden):
    data = golden("addons")
    layer = layers.GroupNorm(32, epsilon=1e-5)
    layer.build(data["gn_x"].shape)
    layer.scale.assign(data["gn_gamma"])
    layer.bias.assign(data["gn_beta"])
    np.testing.assert_allclose(array(layer(data["gn_x"])), data["gn_y"], rtol=1e-5, atol=1e-5)  # float32 rounding


def test_group_norm_refuses_channels_that_do_not_divide():
    with pytest.raises(ValueError, match="multiple of `groups`=32.*32 or 64"):
        layers.GroupNorm(32)(np.zeros((1, 2, 2, 48), "float32"))


@pytest.mark.parametrize("kind", ["tanh", "erf"])
def test_gelu_matches_golden_values(kind, golden):
    data = golden("addons")
    activation = layers.get_activation({"tanh": "gelu_tanh", "erf": "gelu"}[kind])
    # rtol for float32 functions of another library; atol for the far tail, where the result is near 0.
    np.testing.assert_allclose(array(activation(data["gelu_x"])), data[f"gelu_{kind}"], rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="differentiates with TensorFlow's tape")
def test_gelu_and_its_derivative_match_the_formula_in_training():
    import tensorflow as tf

    # The identity as the first matrix, so that the block is the activation of its input.
    block = layers.MlpBlock(64)
    block.build((1, 101, 64))
    block.dense_0.kernel.assign(np.eye(64))
    block.dense_1.kernel.assign(np.eye(64))
    block.dense_0.bias.assign(np.zeros(64))
    block.dense_1.bias.assign(np.zeros(64))
    x = np.linspace(-12, 12, 101 * 64).astype("float32").reshape(1, 101, 64)
    double = x.astype("float64")
    inner = np.sqrt(2 / np.pi) * (double + 0.044715 * double**3)
    value = 0.5 * double * (1 + np.tanh(inner))
    slope = 0.5 * (1 + np.tanh(inner)) + 0.5 * double / np.cosh(inner) ** 2 * np.sqrt(2 / np.pi) * (
        1 + 3 * 0.044715 * double**2
    )
    for dtype, tolerance in (("float32", 5e-6), ("bfloat16", 2**-7)):  # bfloat16 rounds values up to 2 by 2**-8 each
        with tf.GradientTape() as tape:
            inputs = tf.cast(x, dtype)
            tape.watch(inputs)
            outputs = layers.kernels.gelu_tanh(inputs)
        rounded = array(inputs)
        np.testing.assert_allclose(
            array(tape.gradient(outputs, inputs)), np.interp(rounded, x.ravel(), slope.ravel()), atol=tolerance
        )
    with tf.GradientTape() as tape:
        inputs = tf.constant(x)
        tape.watch(inputs)
        outputs = block(inputs, training=True)
    np.testing.assert_allclose(array(outputs), value, rtol=1e-6, atol=2e-6)  # a few roundings of values up to 12
    np.testing.assert_allclose(array(tape.gradient(outputs, inputs)), slope, atol=5e-6)


def test_quick_gelu_matches_the_formula():
    x = normal(50)
    got = array(layers.get_activation("quick_gelu")(ops.convert_to_tensor(x)))
    np.testing.assert_allclose(got, x / (1 + np.exp(-1.702 * x)), rtol=1e-5, atol=1e-6)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention_by_hand(layer, x, context, bias=0.0):
    w = {v.path.split("/", 1)[1]: array(v) for v in layer.weights}

    def project(name, y):
        return np.einsum("bnd,dhk->bhnk", y, w[f"{name}/kernel"]) + w[f"{name}/bias"][:, np.newaxis]

    q, k, v = project("query", x), project("key", context), project("value", context)
    weights = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias)
    return np.einsum("bhnk,hkd->bnd", weights @ v, w["out/kernel"]) + w["out/bias"], weights, q


@pytest.mark.parametrize("cross", [False, True])
def test_attention_matches_the_formula(cross):
    layer = layers.SelfAttention(num_heads=2, name="attention")
    x, context = normal(2, 5, 8), normal(2, 3, 8, seed=1)
    layer.build(x.shape)
    for i, v in enumerate(layer.weights):
        v.assign(normal(*v.shape, seed=i + 2))
    arguments = {"context": context} if cross else {}
    output, weights = layer(x, return_attention_scores=True, **arguments)
    np.testing.assert_array_equal(array(layer(x, **arguments)), array(output))
    expected, expected_weights, _ = attention_by_hand(layer, x, context if cross else x)
    np.testing.assert_allclose(array(output), expected, rtol=1e-4, atol=1e-4)  # products of values up to some tens
    np.testing.assert_allclose(array(weights), expected_weights, rtol=1e-4, atol=1e-5)
    symbolic = layer(
        keras.Input((5, 8)), return_attention_scores=True, **({"context": keras.Input((3, 8))} if cross else {})
    )
    assert [tensor.shape[1:] for tensor in symbolic] == [output.shape[1:], weights.shape[1:]]


def test_relative_positions_add_the_query_s_product_with_the_offset_s_embedding():
    layer = layers.SelfAttention(num_heads=2, relative_positions=5, name="attention")
    x = normal(2, 5, 8)
    layer.build(x.shape)
    for i, v in enumerate(layer.weights):
        v.assign(normal(*v.shape, seed=i + 2))
    embedding = array(layer.relative_embedding)
    assert embedding.shape == (9, 4)  # offsets of -4 to 4
    _, _, query = attention_by_hand(layer, x, x)
    offsets = np.arange(5)[np.newaxis] - np.arange(5)[:, np.newaxis] + 4
    bias = np.einsum("bhnk,nmk->bhnm", query, embedding[offsets]) / np.sqrt(4)
    expected, expected_weights, _ = attention_by_hand(layer, x, x, bias)
    output, weights = layer(x, return_attention_scores=True)
    np.testing.assert_allclose(array(weights), expected_weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(array(output), expected, rtol=1e-4, atol=1e-4)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="`hidden_size` must be a multiple of `num_heads`=3"):
        layers.SelfAttention(num_heads=3)(normal(1, 2, 8))
    with pytest.raises(ValueError, match="multiple of `num_heads`=3"):
        layers.EncoderBlock(layers.SelfAttention(3), layers.MlpBlock(16))(normal(1, 2, 8))


def test_encoder_block_returns_the_attention_scores_of_its_input():
    block = layers.EncoderBlock(layers.SelfAttention(2), layers.MlpBlock(16), layer_scale=0.5)
    x = normal(2, 5, 8)
    output, weights = block(x, return_attention_scores=True)
    np.testing.assert_array_equal(array(block(x)), array(output))
    # The initial scale is 1 and the initial biases are 0.
    normalized = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    query, key = (
        np.einsum("bnd,dhk->bhnk", normalized, array(getattr(block.attention, name).kernel))
        for name in ("query", "key")
    )
    np.testing.assert_allclose(array(weights), softmax(query @ key.swapaxes(-1, -2) / 2), rtol=1e-4, atol=1e-6)
    assert weights.shape == (2, 2, 5, 5)
    np.testing.assert_allclose(array(weights).sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        layers.SelfAttention(2),
        layers.EncoderBlock(layers.SelfAttention(2), layers.MlpBlock(16)),
        layers.MAPHead(layers.SelfAttention(2), layers.MlpBlock(16)),
    ],
)
def test_symbolic_scores_have_the_shapes_of_the_computed_scores(layer):
    x = normal(3, 5, 8)
    symbolic = layer(keras.Input((5, 8)), return_attention_scores=True)
    computed = layer(x, return_attention_scores=True)
    assert [(None, *value.shape[1:]) for value in computed] == [value.shape for value in symbolic]
    assert layer(keras.Input((5, 8))).shape == symbolic[0].shape


def test_attention_scores_can_be_edited():
    """Weights of zero leave the biases of the output, and what is returned is the softmax."""
    layer = layers.SelfAttention(2)
    x = normal(2, 5, 8)
    output, scores = layer(x, return_attention_scores=True, edit_scores=lambda scores: scores * 0)
    np.testing.assert_array_equal(array(output), 0)
    np.testing.assert_allclose(array(scores).sum(-1), 1, rtol=1e-5)
    same = layer(x, edit_scores=lambda scores: scores)
    np.testing.assert_array_equal(array(same), array(layer(x)))


def test_map_head_with_equal_tokens_attends_uniformly():
    head = layers.MAPHead(layers.SelfAttention(2), layers.MlpBlock(16))
    tokens = np.broadcast_to(normal(1, 1, 8), (3, 6, 8)).copy()
    pooled, weights = head(tokens, return_attention_scores=True)
    assert pooled.shape == (3, 8)
    np.testing.assert_allclose(array(weights), 1 / 6, rtol=1e-5)


def test_token_and_mean_pooling_match_the_formula():
    x = normal(2, 5, 8)
    np.testing.assert_array_equal(array(layers.TokenPooling(1)(x)), x[:, 1])
    np.testing.assert_allclose(array(layers.PatchMeanPooling(2)(x)), x[:, 2:].mean(1), rtol=1e-5, atol=1e-6)


def test_stochastic_depth_drops_whole_examples_and_keeps_the_mean():
    layer = layers.StochasticDepth(0.25, seed=1)
    x = np.ones((20_000, 2, 3), "float32")
    y = array(layer(x, training=True))
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.75)}
    assert (y.min((1, 2)) == y.max((1, 2))).all()
    assert y.mean() == pytest.approx(1.0, abs=0.02)  # 20,000 draws: standard error 0.004
    np.testing.assert_array_equal(array(layer(x)), x)


def test_dropout_keeps_the_mean():
    y = array(layers.Dropout(0.25, seed=1)(np.ones((100, 200), "float32"), training=True))
    assert y.mean() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("rate", [-0.1, 1.0, True, "0.1"])
def test_rates_are_probabilities(rate):
    with pytest.raises(ValueError, match=r"in \[0, 1\)"):
        layers.StochasticDepth(rate)


@pytest.mark.parametrize("inside", [False, True])
def test_std_conv_is_a_convolution_with_a_standardized_kernel(inside):
    layer = layers.StdConv2D(4, 3, strides=2, epsilon=1e-3, epsilon_inside=inside)
    x = normal(2, 7, 6, 5)
    y = array(layer(x))
    kernel = array(layer.kernel).astype("float64")
    mean, variance = kernel.mean((0, 1, 2)), kernel.var((0, 1, 2))
    deviation = np.sqrt(variance + 1e-3) if inside else np.sqrt(variance) + 1e-3
    reference = keras.layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False)
    reference.build(x.shape)
    reference.kernel.assign((kernel - mean) / deviation)
    np.testing.assert_allclose(y, array(reference(x)), rtol=1e-4, atol=1e-5)
    assert y.shape == layer.compute_output_shape(x.shape)


def test_residual_units_start_as_their_shortcut():
    """gn3 starts with scale zero: relu(x + 0) where no projection is needed."""
    unit = layers.BottleneckUnit(32)
    x = normal(2, 4, 4, 128)
    np.testing.assert_array_equal(array(unit(x)), np.maximum(x, 0))


def test_bit_pool_padding_changes_only_the_border():
    x = normal(1, 32, 32, 3)
    infinity, zeros = layers.BiTRoot(64), layers.BiTRoot(64, pool_padding="zeros")
    infinity.build(x.shape), zeros.build(x.shape)
    zeros.set_weights(infinity.get_weights())
    a, b = array(infinity(x)), array(zeros(x))
    assert a.shape == b.shape == (1, 8, 8, 64)
    np.testing.assert_array_equal(a[:, 1:, 1:], b[:, 1:, 1:])
    assert (a[:, 0] != b[:, 0]).any()
    np.testing.assert_array_equal(b[:, 0], np.maximum(a[:, 0], 0))


def test_edge_padding_equals_infinite_padding_in_bit():
    for size in (32, 34, 38):  # maps of 16, 17 and 19 to pool
        x = normal(1, size, size, 3)
        infinity, edge = layers.BiTRoot(64), layers.BiTRoot(64, pool_padding="edge")
        infinity.build(x.shape), edge.build(x.shape)
        edge.set_weights(infinity.get_weights())
        np.testing.assert_array_equal(array(infinity(x)), array(edge(x)))


class TestPositions:
    def test_learned_table_is_added(self):
        layer = layers.AddPositionEmbs(grid=(2, 3), num_prefix_tokens=1)
        x = normal(2, 7, 8)
        np.testing.assert_allclose(array(layer(x)), x + array(layer.pos_embedding), rtol=1e-6)

    def test_registers_have_no_position(self):
        layer = layers.AddPositionEmbs(grid=(2, 3), num_prefix_tokens=1, num_registers=2, stddev=1.0)
        added = array(layer(np.zeros((1, 9, 8), "float32")))
        np.testing.assert_array_equal(added[:, 1:3], 0)
        np.testing.assert_array_equal(np.delete(added, [1, 2], axis=1), array(layer.pos_embedding))

    def test_learned2d_concatenates_column_and_row_embeddings(self):
        layer = layers.AddPositionEmbs(grid=(2, 3), kind="learned2d", stddev=1.0)
        added = array(layer(np.zeros((1, 6, 8), "float32"))).reshape(2, 3, 8)
        for row in range(2):
            for column in range(3):
                np.testing.assert_array_equal(added[row, column, :4], array(layer.pos_embedding_x)[0, column])
                np.testing.assert_array_equal(added[row, column, 4:], array(layer.pos_embedding_y)[0, row])

    def test_sincos_embedding_matches_the_formula(self):
        table = layers.sincos_2d_table(3, 4, 16).reshape(3, 4, 4, 4)  # [row, column, quarter, frequency]
        omega = 10_000.0 ** -(np.arange(4) / 3)
        for quarter, (function, axis) in enumerate([(np.sin, 1), (np.cos, 1), (np.sin, 0), (np.cos, 0)]):
            position = (2, 3)[axis]
            np.testing.assert_allclose(table[2, 3, quarter], function(position * omega), atol=1e-6)

    def test_square_grid_is_found_from_the_length(self):
        layer = layers.AddPositionEmbs(num_prefix_tokens=1)
        layer(normal(1, 10, 8))
        assert layer.pos_embedding.shape == (1, 10, 8)
        with pytest.raises(ValueError, match="must form a square.*sequence of 9"):
            layers.AddPositionEmbs(num_prefix_tokens=1)(normal(1, 9, 8))
        with pytest.raises(ValueError, match="must form a square.*sequence of 1 tokens"):
            layers.AddPositionEmbs(num_prefix_tokens=1)(normal(1, 1, 8))

    def test_prefix_tokens_and_registers_have_no_fixed_position(self):
        layer = layers.AddPositionEmbs(grid=(2, 3), kind="sincos2d", num_prefix_tokens=1, num_registers=2)
        added = array(layer(np.zeros((1, 9, 8), "float32")))
        np.testing.assert_array_equal(added[:, :3], 0)
        np.testing.assert_array_equal(added[:, 3:], layers.sincos_2d_table(2, 3, 8))

    def test_wrong_number_of_tokens_is_refused(self):
        with pytest.raises(ValueError, match="has 7 tokens. Received: a sequence of 8"):
            layers.AddPositionEmbs(grid=(2, 3), num_prefix_tokens=1)(normal(1, 8, 8))

    def test_unknown_position_embedding_is_refused_with_a_suggestion(self):
        with pytest.raises(ValueError, match="Did you mean 'learned2d'"):
            layers.AddPositionEmbs(kind="learned-2d")

    @pytest.mark.parametrize("grids", [(7, 12), (14, 24), (12, 7), (24, 14), (4, 4)])
    def test_position_resizing_matches_golden_values(self, grids, golden):
        data = golden("posemb_resize")
        found = 0
        for key in data:
            parts = key.split("_")
            if parts[0] == "new" and (int(parts[1]), int(parts[2])) == grids:
                found += 1
                old, new, cls = data["_".join(["old", parts[1], parts[3]])], data[key], int(parts[3])
                table = old[:, cls:].reshape(1, grids[0], grids[0], -1)
                got = array(layers.resize_table(table, (grids[1], grids[1]))).reshape(1, grids[1] ** 2, -1)
                # The reference interpolates in double precision, the layer in float32.
                np.testing.assert_allclose(got, new[:, cls:], rtol=1e-5, atol=1e-6)
        assert found

    def test_resizing_to_the_same_grid_is_the_identity(self):
        table = normal(1, 5, 7, 3)
        np.testing.assert_array_equal(array(layers.resize_table(table, (5, 7))), table)

    def test_resizing_a_linear_ramp_is_linear(self):
        """Align-corners interpolation keeps the corners and the line between them."""
        table = np.stack(np.meshgrid(np.arange(4.0), np.arange(3.0), indexing="ij"), -1)[np.newaxis].astype("float32")
        got = array(layers.resize_table(table, (7, 5)))[0]
        np.testing.assert_allclose(got[..., 0], np.linspace(0, 3, 7)[:, np.newaxis] * np.ones(5), atol=1e-6)
        np.testing.assert_allclose(got[..., 1], np.ones((7, 1)) * np.linspace(0, 2, 5), atol=1e-6)


MLP = layers.MlpBlock(5, activation="relu")
LAYERS = {
    "PatchEncoder": (dict(patch_size=2, hidden_size=8), (2, 4, 6, 3)),
    "FlattenGrid": ({}, (2, 2, 3, 8)),
    "ClassToken": ({}, (2, 6, 8)),
    "RegisterTokens": (dict(num_tokens=3), (2, 6, 8)),
    "FirstTokens": (dict(num_tokens=2), (2, 6, 8)),
    "AddPositionEmbs": (dict(grid=(2, 3), kind="learned2d"), (2, 6, 8)),
    "FixedPositionEmbs": (dict(grid=(2, 3), num_prefix_tokens=0), (2, 6, 8)),
    "SelfAttention": (
        dict(num_heads=2, use_bias=(True, False, True), relative_positions=6, qk_norm="rms"),
        (2, 6, 8),
    ),
    "MlpBlock": (dict(mlp_dim=5, activation="gelu"), (2, 6, 8)),
    "SwiGLU": (dict(mlp_dim=5), (2, 6, 8)),
    "RotaryPositions": (dict(head_dim=8, num_prefix_tokens=1, base=50.0, shift=0.1, jitter=1.5), (2, 2, 3, 8)),
    "LayerScale": (dict(initial_value=0.3), (2, 6, 8)),
    "EncoderBlock": (
        dict(attention=layers.SelfAttention(2, chunk_size=4), mlp=MLP, dropout_rate=0.1, layer_scale=0.1),
        (2, 6, 8),
    ),
    "MAPHead": (dict(attention=layers.SelfAttention(2), mlp=MLP), (2, 6, 8)),
    "TokenPooling": (dict(index=1), (2, 6, 8)),
    "PatchMeanPooling": (dict(num_prefix_tokens=2), (2, 6, 8)),
    "Dropout": (dict(rate=0.1), (2, 6, 8)),
    "StochasticDepth": (dict(rate=0.1), (2, 6, 8)),
    "LayerNorm": (dict(epsilon=1e-3), (2, 6, 8)),
    "RMSNorm": (dict(epsilon=1e-3), (2, 6, 8)),
    "GroupNorm": (dict(groups=4), (2, 4, 4, 8)),
    "StdConv2D": (dict(filters=4, kernel_size=(3, 1), padding="valid"), (2, 4, 6, 3)),
    "BottleneckUnit": (dict(features=32, strides=2), (2, 4, 6, 32)),
    "ResNetStage": (dict(num_units=2, features=32, strides=2, resnet_numerics="timm"), (2, 4, 6, 32)),
    "BiTRoot": (dict(filters=8, pool_padding="zeros"), (2, 16, 8, 3)),
    "Dense": (dict(units=3), (2, 5, 4)),
    "EinsumDense": (dict(equation="bnd,dhk->bnhk", output_shape=(5, 2, 3)), (2, 5, 4)),
    "BiTUnit": (dict(features=32), (2, 4, 6, 32)),
    "BiTStage": (dict(num_units=2, features=32, strides=2), (2, 4, 6, 32)),
}


def test_every_public_layer_is_in_the_table():
    public = {name for name in layers.__all__ if isinstance(getattr(layers, name), type)}
    assert public == set(LAYERS) | set(WITH_PLACES) | {"UnflattenGrid"}  # tests/models/test_features.py saves it


@pytest.mark.parametrize(
    ("name", "policy"),
    selection.cases(
        [(name, policy) for policy in ("float32", "mixed_bfloat16", "bfloat16") for name in LAYERS],
        lambda name, policy: policy == "float32",
        lambda name, policy: pytest.mark.slow if policy == "mixed_bfloat16" else selection.EXHAUSTIVE,
    ),
)
def test_layers_are_saved_and_loaded(name, policy, tmp_path):
    arguments, shape = LAYERS[name]
    if "mlp" in arguments:
        parts = {name: arguments[name].get_config() | {"dtype": policy} for name in ("attention", "mlp")}
        attention, mlp = layers.SelfAttention(**parts["attention"]), layers.MlpBlock(**parts["mlp"])
        arguments = {**arguments, "attention": attention, "mlp": mlp}
    layer = getattr(layers, name)(**arguments, dtype=policy, name="layer")
    inputs = keras.Input(shape[1:], dtype=layer.compute_dtype)
    model = keras.Model(inputs, layer(inputs))
    for i, v in enumerate(layer.weights):
        v.assign(normal(*v.shape, seed=i))
    x = normal(*shape)
    expected = array(model(x))
    assert expected.shape[1:] == model.output_shape[1:]
    if type(layer).compute_output_shape is not keras.layers.Layer.compute_output_shape:
        assert expected.shape == tuple(layer.compute_output_shape(shape))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(loaded(x)), expected)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(array(clone(x)), expected)
    assert layer.get_config() == loaded.get_layer("layer").get_config()


ARGUMENTS = {
    layers.AddPositionEmbs: {"grid": (2, 3)},
    layers.BiTRoot: {"filters": 32},
    layers.BiTStage: {"num_units": 2, "features": 32},
    layers.BiTUnit: {"features": 32},
    layers.BottleneckUnit: {"features": 32},
    layers.Dropout: {"rate": 0.1},
    layers.FirstTokens: {"num_tokens": 1},
    layers.FixedPositionEmbs: {"grid": (2, 3)},
    layers.VisiblePatches: {"num_visible": 2},
    layers.EncoderBlock: {"attention": layers.SelfAttention(2), "mlp": MLP},
    layers.MAPHead: {"attention": layers.SelfAttention(2), "mlp": MLP},
    layers.MlpBlock: {"mlp_dim": 8},
    layers.PatchEncoder: {"patch_size": 4, "hidden_size": 8},
    layers.RotaryPositions: {"head_dim": 8},
    layers.SwiGLU: {"mlp_dim": 8},
    layers.RegisterTokens: {"num_tokens": 2},
    layers.ResNetStage: {"num_units": 1, "features": 32, "resnet_numerics": "timm"},
    layers.SelfAttention: {"num_heads": 2},
    layers.StdConv2D: {"filters": 8, "kernel_size": 3},
    layers.StochasticDepth: {"rate": 0.1},
}
CLASSES = [getattr(layers, name) for name in layers.__all__ if name[0].isupper() and "Dense" not in name]  # Keras'


@pytest.mark.parametrize("layer_class", CLASSES, ids=lambda layer_class: layer_class.__name__)
def test_get_config_contains_every_argument(layer_class):
    layer = layer_class(**ARGUMENTS.get(layer_class, {}))
    config = layer.get_config()
    assert ARGUMENTS.get(layer_class, {}).keys() <= config.keys()
    names = set(inspect.signature(layer_class).parameters) - {"args", "kwargs"}
    assert names <= config.keys()
    assert layer_class.from_config(config).get_config() == config
    assert keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer)).get_config() == config


def test_a_subclass_keeps_the_arguments_of_its_base():
    class Doubled(layers.LayerNorm):
        def __init__(self, factor, **kwargs):
            super().__init__(**kwargs)
            self.factor = factor

    config = Doubled(3, epsilon=0.5).get_config()
    assert (config["factor"], config["epsilon"]) == (3, 0.5)


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (lambda **k: layers.SelfAttention(2, **k), "head_dim", -3),
        (lambda **k: layers.SelfAttention(2, **k), "output_projection", "nonsense"),
        (lambda attention: layers.EncoderBlock(attention, layers.MlpBlock(64)), "attention", 2),
        (lambda mlp: layers.EncoderBlock(layers.SelfAttention(2), mlp), "mlp", 64),
        (lambda **k: layers.EncoderBlock(layers.SelfAttention(2), layers.MlpBlock(64), **k), "head_dimm", 4),
        (lambda mlp: layers.MAPHead(layers.SelfAttention(2), mlp), "mlp", 64),
        (lambda **k: layers.MlpBlock(64, **k), "activation", "nonsense"),
        (lambda **k: layers.ResNetStage(1, 4, **k), "resnet_numerics", "nonsense"),
    ],
)
def test_arguments_of_sublayers_are_checked_by_the_constructor(make, name, value):
    with pytest.raises(ValueError, match=name):
        make(**{name: value})


def test_a_block_is_saved_with_the_arguments_of_its_attention():
    attention = layers.SelfAttention(2, head_dim=6, output_projection="no_bias", dropout_rate=0.1)
    block = layers.EncoderBlock(attention, layers.MlpBlock(16))
    block(normal(1, 3, 8))
    copy = layers.EncoderBlock.from_config(block.get_config())
    assert copy.get_config() == block.get_config()
    assert copy.attention.get_config() == attention.get_config()
    copy.build((None, 3, 8))
    assert copy.attention.query.kernel.shape == (8, 2, 6)


@keras.saving.register_keras_serializable(package="tests")
class Gated(keras.layers.Layer):
    """An MLP that is not one of the package."""

    def build(self, input_shape):
        self.gate = keras.layers.Dense(input_shape[-1], name="gate")
        self.gate.build(input_shape)

    def call(self, x):
        return x * self.gate(x)


@pytest.mark.slow
def test_a_block_accepts_any_mlp_and_is_saved_with_it(tmp_path):
    inputs = keras.Input((3, 8))
    block = layers.EncoderBlock(layers.SelfAttention(2), Gated(name="gated"), name="block")
    model = keras.Model(
        inputs, layers.MAPHead(layers.SelfAttention(2), Gated(name="gated"), name="head")(block(inputs))
    )
    assert "block/gated/gate/kernel" in [weight.path for weight in model.weights]
    block.attention.query.enable_lora(1)
    block.mlp.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.get_layer("block").mlp, Gated) and not loaded.get_layer("block").mlp.trainable
    np.testing.assert_array_equal(array(loaded(normal(2, 3, 8))), array(model(normal(2, 3, 8))))


def test_configuration_of_a_block_keeps_the_lora_rank_of_its_mlp():
    block = layers.EncoderBlock(layers.SelfAttention(2), layers.MlpBlock(16))
    block.build((None, 3, 8))
    block.mlp.dense_0.enable_lora(2)
    copy = layers.EncoderBlock.from_config(block.get_config())
    copy.build((None, 3, 8))
    assert copy.mlp.dense_0.lora_rank == 2
    assert copy.get_config() == block.get_config()


def test_relative_positions_refuse_another_length():
    attend = layers.SelfAttention(num_heads=2, relative_positions=5)
    x = np.ones((5, 5, 8), "float32")
    attend(x)
    with pytest.raises(ValueError, match="relative_positions=5"):
        attend(x[:, :1], context=x)


@pytest.mark.parametrize(
    "layer",
    [
        layers.Dropout(0.5),
        layers.StochasticDepth(0.5),
        layers.LayerNorm(),
        layers.RMSNorm(),
        layers.LayerScale(2.0),
        layers.MlpBlock(4),
        layers.SwiGLU(4),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_of_single_tokens_pass_the_mask_on(layer):
    tokens = normal(2, 5, 8)
    tokens[:, 3:] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pooled = keras.layers.GlobalAveragePooling1D()(layer(keras.layers.Masking()(tokens)))
    expected = array(layer(tokens[:, :3])).mean(axis=1)  # without the two tokens that are masked
    np.testing.assert_allclose(array(pooled), expected, atol=1e-6)  # float32 sums of 3 values
