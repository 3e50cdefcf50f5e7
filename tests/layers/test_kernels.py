"""Kernels against their plain formulas: equal values, and the derivatives of differentiation op by op."""

import concurrent.futures
import importlib

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import GroupNorm, LayerNorm, MlpBlock, SelfAttention, formulas, kernels
from keras_vit.layers.kernels import one_pass
from keras_vit.layers.kernels.choice import is_plain, uses_kernel
from tests import half_precision

tf = pytest.importorskip("tensorflow")
RNG = np.random.default_rng(0)


def random(*shape, dtype="float32"):
    return tf.cast(RNG.normal(size=shape), dtype)


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


def assert_same(formula, arguments, *constants, rtol, atol):
    """The kernel of a formula has its values, and its derivatives up to the rounding of other orders of summation."""
    kernel, plain = getattr(kernels, formula), getattr(formulas, formula)
    upstream = random(*plain(*arguments, *constants).shape, dtype=arguments[0].dtype)
    value, got = value_and_gradients(lambda *a: kernel(*a, *constants), arguments, upstream)
    expected_value, expected = value_and_gradients(lambda *a: plain(*a, *constants), arguments, upstream)
    np.testing.assert_array_equal(tf.cast(value, tf.float32), tf.cast(expected_value, tf.float32))
    for first, second in zip(got, expected, strict=True):
        assert first.dtype == second.dtype and first.shape == second.shape
        np.testing.assert_allclose(tf.cast(first, tf.float64), tf.cast(second, tf.float64), rtol=rtol, atol=atol)


def cases(dtype):
    """{name: formula, arguments, constants}"""
    image = random(2, 3, 5, 16, dtype=dtype) * 3 + 1
    return {
        "layer_norm": (
            "layer_norm",
            [random(2, 5, 16, dtype=dtype) * 3 + 1, random(16), random(16)],
            (1e-6,),
        ),
        "group_norm": ("group_norm", [image, random(16), random(16)], (4, 1e-6)),
        "gelu": ("gelu", [random(2, 5, 16, dtype=dtype) * 3], ()),
        "gelu_tanh": ("gelu_tanh", [random(2, 5, 16, dtype=dtype) * 3], ()),
    }


@pytest.mark.parametrize("name", list(cases("float32")))
def test_kernels_match_the_formulas_in_float32(name):
    formula, arguments, constants = cases("float32")[name]
    # GELU's derivative is a sum of terms up to 9, whose sum is small.
    assert_same(formula, arguments, *constants, rtol=1e-5, atol=2e-5 if name == "gelu_tanh" else 3e-6)


@pytest.mark.parametrize("name", list(cases("float32")))
def test_gradients_in_bfloat16_equal_float32_gradients_to_four_roundings(name):
    formula, arguments, constants = cases("bfloat16")[name]
    kernel, plain = getattr(kernels, formula), getattr(formulas, formula)
    upstream = random(*plain(*arguments, *constants).shape, dtype="bfloat16")
    value, found = value_and_gradients(lambda *a: kernel(*a, *constants), arguments, upstream)
    np.testing.assert_array_equal(*(tf.cast(v, tf.float32) for v in (value, plain(*arguments, *constants))))
    wide = [tf.cast(argument, tf.float32) for argument in arguments]
    _, exact = value_and_gradients(lambda *a: plain(*a, *constants), wide, tf.cast(upstream, tf.float32))
    roundings = 4 if half_precision.sums_are_exact() else 12  # else each of a gradient's sums is rounded on its way
    for got, expected in zip(found, exact, strict=True):
        error = tf.norm(tf.cast(got, tf.float32) - expected) / tf.norm(expected)
        assert error < roundings * 2**-9, error  # a number of 8 bits is off by up to 2^-9 of itself


def test_group_norm_matches_the_formula():
    x, scale, bias = random(2, 3, 5, 16) * 3 + 1, random(16), random(16)
    expected = plain_group_norm(x, scale, bias)
    np.testing.assert_allclose(formulas.group_norm(x, scale, bias, 4, 1e-6), expected, rtol=1e-5, atol=3e-6)


def test_group_norm_of_a_nearly_constant_image_is_accurate():
    """A mean a thousand times the deviation: sums of what is not centered would lose three of seven digits."""
    arguments = [1000 + random(2, 3, 5, 16), random(16), random(16)]
    expected = plain_group_norm(*arguments)
    # The mean itself is off by 1e3 * 2^-24 = 6e-5 in either form.
    np.testing.assert_allclose(formulas.group_norm(*arguments, 4, 1e-6), expected, rtol=1e-3, atol=1e-3)
    assert_same("group_norm", arguments, 4, 1e-6, rtol=1e-3, atol=1e-3)


def test_layer_norm_keeps_the_precision_of_its_input():
    """A mean a hundred times the deviation, of numbers with 8 bits."""
    signs = RNG.choice([-1.0, 1.0], size=(4, 64))
    x = tf.cast(100.0 + signs, tf.bfloat16)
    expected = (signs - signs.mean(-1, keepdims=True)) / signs.std(-1, keepdims=True)
    got = LayerNorm(dtype="bfloat16")(x, training=True)
    np.testing.assert_allclose(tf.cast(got, tf.float32), expected, atol=0.01)


@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (LayerNorm, (2, 5, 8)),
        (lambda **k: GroupNorm(4, **k), (2, 5, 3, 8)),
        (lambda **k: SelfAttention(2, **k), (2, 5, 8)),
    ],
)
def test_training_and_inference_are_the_same_function(make, shape, policy):
    layer = make(dtype=policy)
    layer.build(shape)
    for weight in layer.weights:
        weight.assign(weight + keras.random.normal(weight.shape, stddev=0.1, seed=1, dtype="float32"))
    x = random(*shape, dtype=policy) * 3 + 1
    outputs = [tf.cast(layer(x, training=training), tf.float32) for training in (False, True)]
    np.testing.assert_array_equal(*outputs)
    with kernels.plain():
        plain = tf.cast(layer(x), tf.float32)
    if policy == "float32":
        np.testing.assert_array_equal(plain, outputs[0])
    else:
        half_precision.assert_same_function(plain, outputs[0])


def chosen():
    """The kernels that are chosen."""
    return {name for name in kernels.KERNELS if uses_kernel(name)}


def test_plain_formulas_are_used_within_the_context():
    x = random(8)
    with kernels.plain():
        assert chosen() == set()
        np.testing.assert_array_equal(kernels.gelu_tanh(x), formulas.gelu_tanh(x))
    with kernels.plain("gelu_tanh"), kernels.plain("group_norm"):
        assert chosen() == {"attention", "feed_forward", "gelu", "layer_norm"}
    assert "gelu_tanh" in chosen()
    with pytest.raises(ValueError, match="`names`"), kernels.plain("relu"):
        pass


def test_context_applies_only_to_its_thread():
    with kernels.plain(), concurrent.futures.ThreadPoolExecutor(1) as threads:
        assert chosen() == set()
        assert threads.submit(chosen).result()


def test_other_backends_use_the_plain_formulas(monkeypatch):
    assert chosen() == set(kernels.KERNELS)
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    assert chosen() == set()


@pytest.mark.parametrize(
    ("layer", "shape", "module"),
    [(MlpBlock(8), (2, 3, 4), "gelu"), (LayerNorm(), (2, 3, 4), "norm"), (GroupNorm(2), (2, 3, 3, 4), "norm")],
)
def test_recomputation_is_not_merged_with_the_forward_pass(layer, shape, module, monkeypatch):
    """TensorFlow's graph optimizer makes one of two equal computations, and keeps the result in between."""
    from tensorflow.python.eager import context  # the optimized graph is not public

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

    recomputed = operations()
    kernel = importlib.import_module(f"keras_vit.layers.kernels.{module}")
    monkeypatch.setattr(kernel, "recompute_from", lambda upstream, *tensors: tensors)
    assert one_pass.recompute_from is not kernel.recompute_from
    assert recomputed > operations()


@pytest.mark.parametrize(("dtype", "recomputed"), [("float32", [1]), ("bfloat16", []), ("float16", [])])
def test_only_a_wide_gelu_is_recomputed(dtype, recomputed, monkeypatch):
    """In 16 bits, recomputation costs more time than the saved memory is worth."""
    kernel, calls = importlib.import_module("keras_vit.layers.kernels.gelu"), []
    monkeypatch.setattr(kernel, "recompute_from", lambda upstream, *tensors: calls.append(len(tensors)) or tensors)
    x = random(2, 3, dtype=dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = kernels.gelu(x, training=True)
    assert tape.gradient(y, x).dtype == dtype and calls == recomputed


def test_training_keeps_the_shape_of_sequences():
    """A reshape would copy data on a TPU."""
    x = random(2, 3, 4)
    assert kernels.as_rows(x, training=True) is x and kernels.as_rows(x, training=False).shape == (6, 4)


@pytest.mark.parametrize(("dtype", "before"), [("float32", "MatMul"), ("bfloat16", "Reshape"), ("float16", "Reshape")])
def test_16_bits_do_not_fuse_the_second_product_with_its_bias(dtype, before):
    """TensorFlow's graph optimizer fuses a product with a bias that follows at once."""
    layer = MlpBlock(8, dtype=dtype)
    layer.build((2, 3, 4))
    graph = tf.function(layer).get_concrete_function(tf.TensorSpec((None, 3, 4), dtype)).graph
    inputs = [operation.inputs[0].op.type for operation in graph.get_operations() if operation.type == "BiasAdd"]
    assert inputs == ["MatMul", before]


def test_nested_contexts_disable_all_their_kernels():
    with kernels.plain("gelu"):
        with kernels.plain("attention"):
            assert [name for name in kernels.KERNELS if is_plain(name)] == ["attention", "gelu"]
        assert is_plain("gelu") and not is_plain("attention")
        assert not is_plain("xla")
    assert not any(map(is_plain, (*kernels.KERNELS, "xla")))
    with kernels.plain():
        assert all(map(is_plain, (*kernels.KERNELS, "xla")))
    with pytest.raises(ValueError, match="'gelo'.*Did you mean 'gelu'"), kernels.plain("gelo"):
        pass
