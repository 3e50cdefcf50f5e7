"""LoRA of the dense layers: the factors of the paper, by hand."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import Dense, EinsumDense

RNG = np.random.default_rng(0)
# Layer, shape of an image's inputs, and the number of their last axes that are inputs of the kernel.
LAYERS = {
    "query": (lambda **kw: EinsumDense("bnd,dhk->bnhk", (None, 3, 4), bias_axes="hk", **kw), (5, 6), 1),
    "out": (lambda **kw: EinsumDense("bnhk,hkd->bnd", (None, 6), bias_axes="d", **kw), (5, 3, 4), 2),
    "ellipsis": (lambda **kw: EinsumDense("...d,dk->...k", (4,), bias_axes="k", **kw), (5, 6), 1),
    "dense": (lambda **kw: Dense(4, **kw), (5, 6), 1),
}
MODES = [(name, mode) for name in LAYERS for mode in (None, "int8", "int4") if mode is None or name != "ellipsis"]


def array(x):
    return ops.convert_to_numpy(x)


def adapted(name, mode=None, **arguments):
    """A layer with LoRA of random factors, inputs, its outputs without LoRA, and the update of them by hand."""
    create, shape, axes = LAYERS[name]
    layer, x = create(**arguments), RNG.normal(size=(2, *shape)).astype("float32")
    layer.build((None, *shape))
    layer.bias.assign(RNG.normal(size=layer.bias.shape))
    if mode:
        layer.quantize(mode)
    activation, layer.activation = layer.activation, None
    before = array(layer(x))
    layer.activation = activation
    layer.enable_lora(2, lora_alpha=3)
    layer.lora_kernel_b.assign(RNG.normal(size=layer.lora_kernel_b.shape))
    a, b = array(layer.lora_kernel_a), array(layer.lora_kernel_b)
    flat = x.reshape(*x.shape[: x.ndim - axes], -1)
    return layer, x, before, (3 / 2 * flat @ a @ b).reshape(before.shape)


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_the_update_is_the_product_of_flat_factors(name, mode):
    layer, x, before, update = adapted(name, mode, activation="relu")
    assert np.abs(update).max() > 0.1 and len(layer.kernel.shape) > 1
    np.testing.assert_allclose(array(layer(x)), np.maximum(before + update, 0), rtol=1e-5, atol=1e-5)
    assert [weight.name for weight in layer.trainable_weights] == ["bias", "lora_kernel_a", "lora_kernel_b"]


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_merged_layers_have_the_same_outputs(name, mode):
    layer, x, before, update = adapted(name, mode)
    levels = {None: 1e6, "int8": 127, "int4": 7}[mode]  # of a quantized kernel; the products sum over up to 12 inputs
    layer.merge_lora()
    assert np.abs(array(layer(x)) - before - update).max() < 12 * np.abs(update).max() / levels
    if mode is None:
        np.testing.assert_allclose(array(layer(x)), before + update, rtol=1e-5, atol=1e-5)
    fresh = LAYERS[name][0]()
    fresh.build((None, *LAYERS[name][1]))
    if mode:
        fresh.quantize(mode)
    assert [(w.name, w.shape, w.trainable) for w in layer.weights] == [
        (w.name, w.shape, w.trainable) for w in fresh.weights
    ]
    assert layer.get_config().keys() == fresh.get_config().keys()


def test_the_queries_of_vit_b_have_the_weights_of_the_paper():
    layer = EinsumDense("bnd,dhk->bnhk", (None, 12, 64))
    layer.build((None, None, 768))
    layer.enable_lora(8)
    assert sum(weight.shape[0] * weight.shape[1] for weight in layer.trainable_weights) == 12_288
    a, b = array(layer.lora_kernel_a), array(layer.lora_kernel_b)
    assert a.dtype == b.dtype == np.float32 and not b.any()
    bound = 768**-0.5  # `nn.init.kaiming_uniform_(A, a=math.sqrt(5))` of the paper's code: sqrt(6 / ((1 + 5) inputs))
    assert 0.99 * bound < np.abs(a).max() <= bound
    assert abs(a.std() - bound / 3**0.5) < 0.01 * bound


def test_the_arguments_of_a_layer_enable_lora():
    for layer in (Dense(3, lora_rank=2, lora_alpha=5), EinsumDense("bd,de->be", 3, lora_rank=2, lora_alpha=5)):
        layer.build((None, 4))
        again = type(layer).from_config(layer.get_config())
        again.build((None, 4))
        assert (again.lora_rank, again.lora_alpha) == (2, 5)


def test_merged_kernel_is_not_rounded_under_mixed_precision():
    layer, *_ = adapted("query", dtype="mixed_bfloat16")
    update = array(layer.lora_kernel_a) @ array(layer.lora_kernel_b) * 3 / 2
    expected = array(layer._kernel) + update.reshape(layer.kernel.shape)
    np.testing.assert_allclose(array(layer.kernel), expected, rtol=1e-6, atol=1e-6)
    assert layer(np.ones((1, 5, 6))).dtype == "bfloat16"


def test_lora_on_unsupported_layers_is_refused():
    layer = EinsumDense("abc,acd->abd", (None, 4))
    with pytest.raises(ValueError, match="built=False"):
        layer.enable_lora(2)
    layer.build((2, 3, 5))
    with pytest.raises(ValueError, match="equation='abc,acd->abd'"):
        layer.enable_lora(2)
    constrained = Dense(3, kernel_constraint="non_neg")
    constrained.build((None, 4))
    with pytest.raises(ValueError, match="kernel_constraint"):
        constrained.enable_lora(2)
    layer, *_ = adapted("dense")
    with pytest.raises(ValueError, match="lora_enabled=True"):
        layer.enable_lora(2)
    with pytest.raises(ValueError, match="rank"):
        keras.models.clone_model(keras.Sequential([keras.Input((4,)), Dense(3)])).layers[0].enable_lora(0)


@pytest.mark.parametrize("name", LAYERS)
def test_a_file_without_lora_sets_the_kernel_and_leaves_the_factors(name):
    layer, *_ = adapted(name)
    plain = LAYERS[name][0]()
    plain.build((None, *LAYERS[name][1]))
    plain.kernel.assign(RNG.normal(size=plain.kernel.shape))
    store, factors = {}, [array(layer.lora_kernel_a), array(layer.lora_kernel_b)]
    plain.save_own_variables(store)
    layer.load_own_variables({key: array(value) for key, value in store.items()})
    np.testing.assert_array_equal(array(layer._kernel), array(plain.kernel))
    for found, expected in zip((layer.lora_kernel_a, layer.lora_kernel_b), factors, strict=True):
        np.testing.assert_array_equal(array(found), expected)
