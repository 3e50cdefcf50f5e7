"""Layers with expected values by hand: each argument has its effect, and nothing is rounded unintentionally."""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_vit import layers
from keras_vit.layers import formulas, interpolation
from keras_vit.layers.kernels import chunked_attention
from keras_vit.models import VisionTransformer
from keras_vit.models.variables import seed_states
from keras_vit.training.seeds import SeedScope

WIDTH = 4


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def assign(block, values):
    """Set the weights whose path ends with a name, and all others to zero."""
    assigned = set()
    for weight in block.trainable_weights:
        names = [name for name in values if weight.path.endswith(name)]
        weight.assign(np.reshape(values[names[0]], weight.shape) if names else np.zeros(weight.shape))
        assigned.update(names)
    assert assigned == set(values)


def attention():
    return layers.SelfAttention(1, name="MultiHeadDotProductAttention_0")


def normalized(x, epsilon):
    x = x.astype(np.float64)
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def test_encoder_block_with_a_large_epsilon_matches_the_formula():
    """One head whose projections are the identity, and an MLP that is the identity: both norms show their epsilon."""
    block = layers.EncoderBlock(attention(), keras.layers.Identity(name="mlp"), layer_norm_epsilon=0.5)
    x = 0.5 * normal(2, 3, WIDTH)
    block.build(x.shape)
    identity = {f"{name}/kernel": np.eye(WIDTH) for name in ("query", "key", "value", "out")}
    assign(block, {**identity, "LayerNorm_0/scale": np.ones(WIDTH), "LayerNorm_1/scale": np.ones(WIDTH)})
    output, scores = block(x, return_attention_scores=True)
    n = normalized(x, 0.5)
    weights = np.exp(n @ n.swapaxes(1, 2) / 2.0)  # the square root of the width, which is 4
    weights /= weights.sum(-1, keepdims=True)
    after_attention = x + weights @ n
    np.testing.assert_allclose(ops.convert_to_numpy(scores)[:, 0], weights, rtol=1e-5)
    # A few float32 roundings of numbers of order 1.
    np.testing.assert_allclose(output, after_attention + normalized(after_attention, 0.5), rtol=1e-5, atol=1e-5)


def test_both_norms_of_the_patches_have_the_epsilon():
    layer = layers.PatchEncoder((1, 2), WIDTH, norm_epsilon=0.5)
    images = 0.5 * normal(2, 1, 4, 2)
    layer.build(images.shape)
    kernel = normal(1 * 2 * 2, WIDTH, seed=1)
    layer.kernel.assign(kernel.reshape(1, 2, 2, WIDTH))
    patches = images.reshape(2, 2, 4)  # one row of two patches
    expected = normalized(normalized(patches, 0.5) @ kernel, 0.5)
    # Some float32 roundings of numbers of order 1.
    np.testing.assert_allclose(layer(images), expected, rtol=1e-5, atol=1e-5)


def test_normalized_patches_of_a_rectangular_image_match_the_formula():
    """A grid of two rows and three columns, of patches of two rows and three columns."""
    layer = layers.PatchEncoder((2, 3), WIDTH, flatten=False, norm_epsilon=0.5)
    images = 0.5 * normal(2, 4, 9, 2)
    layer.build(images.shape)
    kernel = normal(2 * 3 * 2, WIDTH, seed=1)
    layer.kernel.assign(kernel.reshape(2, 3, 2, WIDTH))
    patches = images.reshape(2, 2, 2, 3, 3, 2).transpose(0, 1, 3, 2, 4, 5).reshape(2, 2, 3, 12)
    expected = normalized(normalized(patches, 0.5) @ kernel, 0.5)
    np.testing.assert_allclose(layer(images), expected, rtol=1e-5, atol=1e-5)


def test_the_branches_of_an_example_are_dropped_independently():
    """Within a training step, too, where a generator that two layers share would draw the same twice."""
    block = layers.EncoderBlock(attention(), layers.MlpBlock(2, name="mlp"), drop_path_rate=0.5)
    block.build((None, 2, WIDTH))
    # The branches are 1 and 10, whatever the input.
    out, mlp = "MultiHeadDotProductAttention_0/out/bias", "mlp/Dense_1/bias"
    assign(block, {out: np.ones(WIDTH), mlp: np.full(WIDTH, 10.0)})
    states = seed_states(block)
    with SeedScope(states, tf.constant([[3, 4 + index] for index in range(len(states))], tf.int64)):
        y = block(np.zeros((64, 2, WIDTH), "float32"), training=True)
    # A branch that stays is doubled. Of 64 examples none has one of four equally likely sums with probability 4e-8.
    values, counts = np.unique(np.asarray(y)[:, 0, 0], return_counts=True)
    assert values.tolist() == [0, 2, 20, 22]
    assert counts.min() >= 4


@pytest.mark.slow
def test_the_arguments_of_a_model_reach_its_layers():
    model = VisionTransformer(
        **{"patch_size": 4, "hidden_size": 8, "num_layers": 3, "num_heads": 2, "mlp_dim": 12, "image_size": 8},
        **{"classes": 3, "layer_norm_epsilon": 0.25, "dropout_rate": 0.1, "attention_dropout_rate": 0.2},
        **{"drop_path_rate": 0.3, "layer_scale": 0.5, "activation": "relu", "qkv_bias": False},
    )
    parts = list(model._flatten_layers())

    def of(kind):
        return [part for part in parts if type(part) is kind]

    assert [norm.epsilon for norm in of(layers.LayerNorm)] == [0.25] * 7
    # "Deep Networks with Stochastic Depth": linear in the depth, from 0 to the rate. Both branches of a block have one.
    rates = [part.rate for part in of(layers.StochasticDepth)]
    np.testing.assert_allclose(rates, [0, 0, 0.15, 0.15, 0.3, 0.3], atol=1e-12)
    assert {part.rate for part in of(layers.Dropout)} == {0.1, 0.2}
    blocks = of(layers.EncoderBlock)
    assert [(block.attention.num_heads, block.attention.dropout_rate) for block in blocks] == [(2, 0.2)] * 3
    assert [block.mlp.mlp_dim for block in blocks] == [12] * 3
    assert not [weight.path for weight in model.weights if weight.path.endswith(("query/bias", "key/bias"))]
    for scale in of(layers.LayerScale):
        np.testing.assert_array_equal(scale.gamma, np.full(8, 0.5, "float32"))
    assert len(of(layers.LayerScale)) == 6
    images = normal(1, 8, 8, 3)
    hidden = np.asarray(blocks[0].mlp.dense_0(normal(1, 2, 8)))
    expected = blocks[0].mlp.dense_1(np.maximum(hidden, 0))
    np.testing.assert_allclose(blocks[0].mlp(normal(1, 2, 8)), expected, rtol=1e-6, atol=1e-6)
    assert model(images).shape == (1, 3)


@pytest.mark.parametrize("norm", [layers.LayerNorm, layers.GroupNorm])
def test_the_scale_of_a_norm_is_not_rounded_to_half_precision(norm):
    """A scale of 1 + 2**-9 would be 1 in bfloat16. It moves many results to the next number of bfloat16."""
    layer = norm(dtype="mixed_bfloat16") if norm is layers.LayerNorm else norm(1, dtype="mixed_bfloat16")
    x = normal(2, 4, 8, 32).astype(ml_dtypes.bfloat16)
    layer.build(x.shape)
    layer.scale.assign(np.full(32, 1 + 2**-9, "float32"))
    layer.bias.assign(np.full(32, 2**-10, "float32"))
    axes = -1 if norm is layers.LayerNorm else (1, 2, 3)
    exact = x.astype(np.float64)
    exact = (exact - exact.mean(axes, keepdims=True)) / np.sqrt(exact.var(axes, keepdims=True) + layer.epsilon)
    found = np.asarray(ops.cast(layer(ops.convert_to_tensor(x)), "float32"))
    for scale, low, high in ((1 + 2**-9, 0.97, 1), (1.0, 0, 0.9)):  # nearly all results agree, and many would not
        expected = (exact * scale + 2**-10).astype(ml_dtypes.bfloat16).astype("float32")
        assert low <= (found == expected).mean() <= high


@pytest.mark.parametrize(
    ("layer", "shapes", "name"),
    [
        # mae/models_mae.py: torch.nn.init.normal_(self.mask_token, std=.02)
        (layers.RestoredPatches(name="mask_token"), [(None, 5, 20_000), (None, 5)], "mask_token"),
        (layers.CorruptedPatches(name="mask_token"), [(None, 5, 20_000), (None, 5)], "mask_token"),
        # dinov3/models/vision_transformer.py: nn.init.normal_(self.storage_tokens, std=0.02)
        (layers.RegisterTokens(4), [(None, 5, 5_000)], "tokens"),
        (layers.SelfAttention(1, relative_positions=500), [(None, 500, 20)], "relative_embedding"),
    ],
)
def test_learned_tokens_are_initialized_as_in_the_references(layer, shapes, name):
    layer.build(*shapes)
    values = np.asarray(getattr(layer, name))
    assert values.size >= 19_980
    # The error of the deviation of 20,000 numbers is 0.5%.
    assert values.std() == pytest.approx(0.02, rel=0.03) and abs(values.mean()) < 1e-3


@pytest.mark.slow
def test_gradients_of_keys_and_values_are_summed_in_float32():
    """A sum of 512 times 1 in bfloat16 ends at 256. Of equal logits, a value's gradient is the mean over the keys."""
    tokens, width = 512, 2
    layer = layers.SelfAttention(1, chunk_size=1, dtype="bfloat16")
    layer.build((None, tokens, width))
    for weight in layer.weights:
        identity = weight.path.endswith(("value/kernel", "out/kernel"))
        weight.assign(np.reshape(np.eye(width), weight.shape) if identity else np.zeros(weight.shape))
    x, context = tf.zeros((1, tokens, width), "bfloat16"), tf.ones((1, 4, width), "bfloat16")

    @tf.function
    def gradient(x, context):
        with tf.GradientTape() as tape:
            tape.watch(context)
            y = layer(x, context=context, training=True)
        return tape.gradient(y, context, tf.fill(y.shape, tf.constant(4.0, "bfloat16")))

    np.testing.assert_array_equal(tf.cast(gradient(x, context), "float32"), np.full((1, 4, width), 512.0))


def test_gated_mlp_matches_the_formula():
    layer = layers.SwiGLU(3)
    x = normal(2, 5, WIDTH)
    layer.build(x.shape)
    gate, up, down = normal(WIDTH, 3, seed=1), normal(WIDTH, 3, seed=2), normal(3, WIDTH, seed=3)
    biases = normal(3, seed=4), normal(3, seed=5), normal(WIDTH, seed=6)
    for dense, kernel, bias in zip((layer.gate, layer.up, layer.down), (gate, up, down), biases, strict=True):
        dense.kernel.assign(kernel)
        dense.bias.assign(bias)
    gated = x @ gate + biases[0]
    expected = (gated / (1 + np.exp(-gated)) * (x @ up + biases[1])) @ down + biases[2]
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-5)


def test_rms_norm_matches_the_formula():
    layer = layers.RMSNorm(epsilon=0.5)
    x, scale = normal(2, 5, WIDTH), normal(WIDTH, seed=1)
    layer.build(x.shape)
    layer.scale.assign(scale)
    assert [weight.name for weight in layer.weights] == ["scale"]
    np.testing.assert_allclose(layer(x), x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.5) * scale, rtol=1e-5)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_query_and_key_norms_match_the_formula(kind):
    """The norm is that of each head, before the scale and the rotation; values have none."""
    layer = layers.SelfAttention(2, use_bias=False, output_projection="none", qk_norm=kind, layer_norm_epsilon=0.5)
    x = normal(2, 1 + 6, 16)
    rotation = layers.RotaryPositions(8, num_prefix_tokens=1)(np.zeros((1, 2, 3, 16), "float32"))
    layer.build(x.shape)
    for index, weight in enumerate(layer.weights):
        weight.assign(normal(*weight.shape, seed=index))

    def norm(values, part):
        values = values - values.mean(-1, keepdims=True) if kind == "layer" else values
        values = values / np.sqrt((values**2).mean(-1, keepdims=True) + 0.5) * ops.convert_to_numpy(part.scale)
        return values + ops.convert_to_numpy(part.bias) if kind == "layer" else values

    query, key, value = (
        np.einsum("bnd,dhk->bnhk", x, ops.convert_to_numpy(part.kernel))
        for part in (layer.query, layer.key, layer.value)
    )
    query, key = norm(query, layer.query_norm), norm(key, layer.key_norm)
    cosines, sines = (part[:, None] for part in ops.convert_to_numpy(rotation))
    query, key = (v * cosines + np.concatenate([-v[..., 4:], v[..., :4]], axis=-1) * sines for v in (query, key))
    weights = np.exp(np.einsum("bnhk,bmhk->bhnm", query, key) / np.sqrt(8))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bhnm,bmhk->bnhk", weights, value).reshape(x.shape)
    np.testing.assert_allclose(layer(x, rotation=rotation), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("use_bias", [(True, False, True), (False, True, False), [True, True, False]])
def test_query_key_and_value_biases_are_independent_options(use_bias):
    layer = layers.SelfAttention(2, use_bias=use_bias)
    layer.build((2, 5, 8))
    assert [part.bias is not None for part in (layer.query, layer.key, layer.value)] == list(use_bias)


class Constant(keras.layers.Layer):
    """A branch that gives a number, whatever comes in."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def call(self, x, **arguments):
        return keras.ops.full_like(x, self.value)


def test_dropout_follows_the_attention():
    """With a branch of ones and a rate of one half, tokens are 0 or 2 in training and 1 otherwise."""
    block = layers.EncoderBlock(Constant(1.0), Constant(0.0), dropout_rate=0.5)
    x = np.zeros((4, 8, 16), "float32")
    assert np.unique(np.array(block(x))).tolist() == [1.0]
    trained = np.array(block(x, training=True))
    assert np.unique(trained).tolist() == [0.0, 2.0]
    assert 0.4 < np.mean(trained == 0) < 0.6  # 512 draws: 4.5 standard deviations


def test_dropout_follows_both_products_of_the_mlp():
    block = layers.MlpBlock(64, dropout_rate=0.5, activation="relu")
    x = np.ones((16, 8, 32), "float32")
    block.build(x.shape)
    block.dense_0.bias.assign(np.ones(64))
    block.dense_0.kernel.assign(np.zeros((32, 64)))
    block.dense_1.kernel.assign(np.eye(64, 32))  # each output is one hidden unit
    trained = np.array(block(x, training=True))
    # Kept by the dropout of its hidden unit and by its own, an output is 1 * 2 * 2; 4,096 draws.
    values, counts = np.unique(np.round(trained, 3), return_counts=True)
    assert values.tolist() == [0.0, 4.0]
    assert counts[1] / trained.size == pytest.approx(0.25, abs=0.03)


def test_dropout_follows_both_products_of_a_gated_mlp():
    layer = layers.SwiGLU(64, dropout_rate=0.5)
    x = np.ones((16, 8, 32), "float32")
    layer.build(x.shape)
    for dense in (layer.gate, layer.up):  # each product is silu(1) * 1
        dense.kernel.assign(np.zeros((32, 64)))
        dense.bias.assign(np.ones(64))
    layer.down.kernel.assign(np.eye(64, 32))  # each output is one product
    trained = np.array(layer(x, training=True))
    values, counts = np.unique(np.round(trained, 3), return_counts=True)
    np.testing.assert_allclose(values, [0.0, 4 / (1 + np.exp(-1))], atol=1e-3)
    assert counts[1] / trained.size == pytest.approx(0.25, abs=0.03)  # 4,096 draws


def test_initial_weights_match_the_references():
    """vit_jax: biases of the MLP normal with 1e-6, the patch kernel LeCun normal, dense kernels Glorot uniform.

    big_vision: the probe of the pooling is Glorot uniform, with one input.
    """
    mlp, patches = layers.MlpBlock(512), layers.PatchEncoder(4, 256)
    pooling = layers.MAPHead(layers.SelfAttention(2), layers.MlpBlock(8))
    pooling.build((None, 4, 256))
    limit = (6 / (1 + 256)) ** 0.5
    assert 0.9 * limit < np.max(np.abs(pooling.probe)) <= limit
    mlp.build((None, 4, 256))
    patches.build((None, 8, 8, 3))
    for dense in (mlp.dense_0, mlp.dense_1):
        assert np.std(dense.bias) == pytest.approx(1e-6, rel=0.2)
        limit = (6 / (256 + 512)) ** 0.5
        assert 0.95 * limit < np.max(np.abs(dense.kernel)) <= limit
    assert np.std(patches.kernel) == pytest.approx((4 * 4 * 3) ** -0.5, rel=0.05)
    assert not np.any(patches.bias)


def test_chunk_size_is_used_for_an_unknown_number_of_queries():
    chosen = [chunked_attention.queries_per_chunk(queries, chunk_size=4) for queries in (None, 4, 5)]
    automatic = [chunked_attention.queries_per_chunk(queries, chunk_size=None) for queries in (None, 1024, 1025, 4096)]
    assert chosen == [4, None, 4] and automatic == [None, None, 205, 256]


def test_norm_of_nearly_equal_half_precision_numbers_is_finite():
    """E[x^2] - E[x]^2 of one 129 among 767 times 130 (and so on) is rounded below zero, whose root is not a number."""
    values = np.arange(130, 256, dtype="float32")[:, None] * np.ones((1, 768), "float32")
    values[:, 0] -= 1
    x = keras.ops.cast(values, "bfloat16")
    _, variance = formulas.moments(x)
    assert np.min(variance) >= 0
    y = formulas.layer_norm(x, np.ones(768, "float32"), np.zeros(768, "float32"), 1e-6)
    assert np.isfinite(np.array(keras.ops.cast(y, "float32"))).all()


def test_bicubic_weights_match_pytorch():
    """Keys' kernel with a = -0.75 at distances of 1/2 and 3/2, and the border repeated; big_vision's has -0.5."""
    table = np.eye(4, dtype="float32").reshape(1, 4, 1, 4)
    found = np.array(interpolation.resize_table(table, (2, 1), "bicubic"))[0, :, 0]
    near, far = 0.59375, -0.09375
    np.testing.assert_allclose(found, [[near + far, near, far, 0], [0, far, near, near + far]], atol=1e-6)


@pytest.mark.parametrize("grid", [(2, 3), (2, 5), (4, 3), (4, 5)])
def test_dinov2_resizing_is_skipped_only_if_both_axes_are_equal(grid):
    table = normal(1, 2, 3, 1)
    rows, columns = (
        interpolation.interpolation_matrix(new, old, "dinov2", np) for new, old in zip(grid, (2, 3), strict=True)
    )
    assert np.abs(interpolation.interpolation_matrix(3, 3, "dinov2", np) - np.eye(3)).max() > 0.01
    expected = table[0, ..., 0] if grid == (2, 3) else rows @ table[0, ..., 0] @ columns.T
    np.testing.assert_allclose(
        np.array(interpolation.resize_table(table, grid, "dinov2"))[0, ..., 0], expected, atol=1e-6
    )


@pytest.mark.parametrize(
    ("unit", "conv", "inside", "norm"),
    [
        # vit_jax/models_resnet.py: weight_standardize(eps=1e-5), added to the deviation; flax.linen.GroupNorm.
        (layers.BottleneckUnit(32), 1e-5, False, 1e-6),
        # timm/models/vision_transformer_hybrid.py: StdConv2dSame(eps=1e-8); timm.layers.GroupNormAct(eps=1e-5).
        (layers.BottleneckUnit(32, resnet_numerics="timm"), 1e-8, True, 1e-5),
        # big_vision/models/bit.py: standardize(eps=1e-10); its GroupNorm has 1e-5.
        (layers.BiTUnit(32), 1e-10, True, 1e-5),
    ],
    ids=["reference", "timm", "bit"],
)
def test_epsilons_of_residual_units_match_the_references(unit, conv, inside, norm):
    unit.build((None, 4, 4, 64))
    parts = [layer for layer in vars(unit).values() if isinstance(layer, (layers.StdConv2D, layers.GroupNorm))]
    convolutions = [part for part in parts if isinstance(part, layers.StdConv2D)]
    assert len(convolutions) == 4 and {(part.epsilon, part.epsilon_inside) for part in convolutions} == {(conv, inside)}
    assert {part.epsilon for part in parts if part not in convolutions} == {norm}
