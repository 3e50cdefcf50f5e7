"""Kernels of 8 bits whose errors cancel: each rounded for the inputs of its layer."""

import keras
import numpy as np
import pytest

from keras_vit import layers
from keras_vit.exporting import calibrated_rounding, weight_only
from tests import tiny


def kernel_and_inputs(inputs, outputs, rows=512):
    """Return a kernel, and inputs that a few directions explain."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(inputs // 8, inputs))
    kernel = rng.normal(size=(inputs, outputs)).astype("float32")
    return kernel, rng.normal(size=(rows, len(directions))) @ directions + 0.05 * rng.normal(size=(rows, inputs)) + 1


def nearest(kernel):
    integers, scales = weight_only.quantize(kernel, 1)
    return integers * scales


def test_quantize_finds_the_same_integers():
    kernel, x = kernel_and_inputs(160, 6)  # more inputs than the errors of which are applied at once
    kernel[:, 2] = 0
    rounded = calibrated_rounding.round_kernel(kernel, x.T @ x / len(x))
    np.testing.assert_allclose(nearest(rounded), rounded, rtol=1e-6)
    assert rounded.dtype == np.float32 and not rounded[:, 2].any()
    np.testing.assert_allclose(np.abs(rounded).max(axis=0), np.abs(kernel).max(axis=0), rtol=1e-6)


def test_errors_of_correlated_inputs_cancel():
    kernel, x = kernel_and_inputs(160, 6)
    seen, unseen = x[::2], x[1::2]
    rounded = calibrated_rounding.round_kernel(kernel, seen.T @ seen / len(seen))
    errors = [np.linalg.norm(unseen @ (one - kernel)) for one in (rounded, nearest(kernel))]
    assert errors[0] < 0.5 * errors[1]


def test_inputs_without_correlation_are_rounded_to_the_nearest():
    kernel, _ = kernel_and_inputs(40, 5)
    moments = np.diag(np.random.default_rng(1).uniform(1, 2, 40))
    for known in (moments, np.zeros((40, 40))):  # inputs that are always zero tell nothing
        np.testing.assert_allclose(calibrated_rounding.round_kernel(kernel, known), nearest(kernel), rtol=1e-6)


def test_the_last_weight_is_the_best_of_all_integers(monkeypatch):
    monkeypatch.setattr(calibrated_rounding, "DAMPING", 0.0)
    moments = np.array([[4.0, 2.9, 1.7], [2.9, 3.0, 1.9], [1.7, 1.9, 2.0]])  # in the order of the rounding
    for seed in range(20):
        kernel = np.random.default_rng(seed).normal(size=(3, 1)).astype("float32")
        kernel[0] = 4  # the largest
        rounded = calibrated_rounding.round_kernel(kernel, moments)
        choices = np.repeat(rounded, 255, axis=1) - kernel
        choices[2] = np.arange(-127, 128) * np.float32(4 / 127) - kernel[2]
        losses = np.einsum("ic,ij,jc->c", choices, moments, choices)
        error = rounded - kernel
        assert (error.T @ moments @ error).item() == pytest.approx(losses.min(), rel=1e-4, abs=1e-9)


def test_biases_keep_the_means_of_outputs():
    rows = keras.Input((32,))
    model = tiny.randomize(keras.Model(rows, layers.Dense(40)(rows)))
    x = np.random.default_rng(0).normal(3, 1, (50, 32)).astype("float32")
    before = np.array(model(x))
    calibrated_rounding.round_kernels(model, x)
    after = np.array(model(x))
    np.testing.assert_allclose(after.mean(axis=0), before.mean(axis=0), atol=1e-5)  # float32 sums
    assert np.abs(after - before).max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("is_gated", [False, True])
def test_a_rounded_model_keeps_its_outputs(is_gated):
    mlp = layers.SwiGLU(64) if is_gated else layers.MlpBlock(64)
    attention = layers.SelfAttention(2, use_bias=(True, False, True) if is_gated else True)
    block = layers.EncoderBlock(attention, mlp, norm_type="rms" if is_gated else "layer")
    sequence = keras.Input((9, 32))
    model = tiny.randomize(keras.Model(sequence, block(sequence)))
    block.norm_0.scale.assign(np.array(block.norm_0.scale) * (np.arange(32) > 0))  # one is zero
    x = np.random.default_rng(0).normal(size=(64, 9, 32)).astype("float32")
    expected = np.array(model(x))
    calibrated_rounding.round_kernels(model, x)
    np.testing.assert_allclose(block.norm_0.scale, np.arange(32) > 0, rtol=1e-6)  # it is part of the kernels
    for layer in (attention.query, attention.out, mlp.down if is_gated else mlp.dense_1):
        kernel = np.reshape(layer.kernel, layer.flat_shape())
        np.testing.assert_allclose(nearest(kernel), kernel, rtol=1e-5, atol=1e-7)
    error, scale = np.array(model(x)) - expected, np.abs(expected).mean()
    assert 1e-4 * scale < np.abs(error).mean() < 0.02 * scale
