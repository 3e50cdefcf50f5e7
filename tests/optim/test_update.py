"""The rule that changes a weight, by hand: every argument of the configuration reaches it."""

import numpy as np
import pytest
from keras import ops

from keras_vit.optim import Optim
from keras_vit.optim.update import UpdateRule
from tests import tiny

BLOCK = "encoderblock_0/MultiHeadDotProductAttention_0"


def rule(**optim):
    return UpdateRule(Optim(**optim), total_steps=100, model=tiny.model())


def apply(update, path, average=None):
    """One step from a weight of 2 along a gradient of 3, with a rate of 0.01."""
    weight, gradient = (ops.full((1, 1), value) for value in (2.0, 3.0))
    average = None if average is None else ops.full((1, 1), average)
    new, _, average = update(path, weight, gradient, ops.full((), 3.0), 0.01, 0, (), average)
    return float(ops.squeeze(new)), None if average is None else float(ops.squeeze(average))


@pytest.mark.parametrize(
    ("path", "multiplier", "decay"),
    [("embedding/kernel", 0.125, 0.1), ("embedding/bias", 0.125, 0), (f"{BLOCK}/out/kernel", 0.25, 0.1)]
    + [("encoderblock_1/LayerNorm_0/scale", 0.5, 0), ("head/kernel", 1.0, 0.1)],
)
def test_a_step(path, multiplier, decay):
    """Decay belongs to the direction, so that the rates by depth scale it, too; the average is of the new weight."""
    update = rule(name="sgd", momentum=0.0, weight_decay=0.1, layer_decay=0.5, ema=0.9, clip_norm=0.0)
    new, average = apply(update, path, average=1.0)
    expected = 2.0 - 0.01 * multiplier * (3.0 + decay * 2.0)
    assert new == pytest.approx(expected, rel=1e-6)
    assert average == pytest.approx(0.9 + 0.1 * expected, rel=1e-6)


@pytest.mark.parametrize(("largest", "scale"), [(0.0, 1.0), (6.0, 1.0), (1.5, 0.5)])
def test_a_gradient_is_cut_to_the_largest_norm(largest, scale):
    new, _ = apply(rule(name="sgd", momentum=0.0, weight_decay=0.0, clip_norm=largest), "head/kernel")
    assert new == pytest.approx(2.0 - 0.01 * 3.0 * scale, rel=1e-6)


@pytest.mark.slow
def test_muon_knows_which_axes_of_a_kernel_are_inputs():
    """The heads' outputs [H, K, D] are a matrix of H * K rows, the queries' kernel [D, H, K] one of D rows."""
    optimizers = rule(name="muon", momentum=0.8, nesterov=True, momentum_dtype="bfloat16", beta2=0.95).optimizers
    muon, adamw = optimizers[f"{BLOCK}/out/kernel"], optimizers["head/kernel"]
    assert (muon.momentum, muon.nesterov, muon.slots[0].dtype, adamw.beta2) == (0.8, True, "bfloat16", 0.95)
    optimizers = rule(name="muon").optimizers
    axes = {name: optimizers[f"{BLOCK}/{name}/kernel"].input_axes for name in ("query", "key", "value", "out")}
    assert axes == {"query": 1, "key": 1, "value": 1, "out": 2}
    gradient = np.random.default_rng(0).normal(size=(2, 8, 16)).astype("float32")
    direction, _ = optimizers[f"{BLOCK}/out/kernel"].direction(
        ops.convert_to_tensor(gradient), (ops.zeros((2, 8, 16)),), 0
    )
    matrix = np.reshape(direction, (16, 16)) / (0.2 * 4)  # RMS of 0.2, sqrt(16)
    assert np.linalg.svd(matrix)[1] == pytest.approx(np.ones(16), abs=0.4)  # those of five rounds lie in 0.7 to 1.2
