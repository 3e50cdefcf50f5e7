"""Optimizers against their formulas, other implementations and each other."""

import keras
import ml_dtypes
import numpy as np
import pytest
from keras import ops

from keras_vit import recipe as recipes
from keras_vit.optim import (
    LARS,
    AdamW,
    Momentum,
    Muon,
    Optim,
    create_optimizer,
    global_norm,
    update_average,
)
from keras_vit.optim.optimizers import apply_direction, orthogonalize
from keras_vit.optim.update import UpdateRule, clip_by_global_norm
from tests import tiny

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(7, 5)).astype(np.float32)
GRADIENTS = RNG.normal(size=(6, 7, 5)).astype(np.float32)
RATES = [0.0, 0.1, 0.2, 0.05, 0.3, 0.01]


def run(optimizer, weight_decay=0.0):
    """The weight after each of six steps at changing rates, and the last slots."""
    weight = WEIGHT
    slots = [np.zeros(WEIGHT.shape, slot.dtype) for slot in optimizer.slots]
    weights = []
    for step, (gradient, rate) in enumerate(zip(GRADIENTS, RATES, strict=True)):
        direction, slots = optimizer.direction(gradient, slots, step, weight)
        weight = apply_direction(weight, direction, rate, weight_decay)
        weights.append(np.asarray(weight))
    return weights, [np.asarray(slot) for slot in slots]


def test_momentum_accumulates_gradients_without_the_learning_rate():
    weight, momentum = WEIGHT.astype(np.float64), 0.0
    for got, gradient, rate in zip(run(Momentum(0.9))[0], GRADIENTS, RATES, strict=True):
        momentum = gradient + 0.9 * momentum
        weight = weight - rate * momentum
        np.testing.assert_allclose(got, weight, rtol=1e-5, atol=1e-6)


def test_nesterov_momentum_matches_the_formula_and_zero_momentum_is_sgd():
    momentum = GRADIENTS[0] + 0.0
    direction, _ = Momentum(0.9, nesterov=True).direction(GRADIENTS[0], [np.zeros_like(WEIGHT)], 0)
    np.testing.assert_allclose(direction, GRADIENTS[0] + 0.9 * momentum, rtol=1e-6)
    plain = Momentum(0.0)
    assert plain.slots == ()
    assert plain.direction(WEIGHT, (), 0)[0] is WEIGHT


def test_lars_matches_the_formula():
    """The rule of MAE's linear probe: the gradient of a matrix at 0.001 of the matrix's norm, then momentum."""
    weight, momentum = WEIGHT.astype(np.float64), 0.0
    for got, gradient, rate in zip(run(LARS(0.9))[0], GRADIENTS, RATES, strict=True):
        momentum = 0.9 * momentum + 1e-3 * np.linalg.norm(weight) / np.linalg.norm(gradient) * gradient
        weight = weight - rate * momentum
        np.testing.assert_allclose(got, weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("weight", "gradient"),
    [(np.zeros((2, 2)), np.ones((2, 2))), (np.ones((2, 2)), np.zeros((2, 2))), (np.ones(2), np.full(2, 3.0))],
    ids=["zero weight", "zero gradient", "vector"],
)
def test_lars_leaves_zero_norms_and_vectors_unscaled(weight, gradient):
    weight, gradient = weight.astype("float32"), gradient.astype("float32")
    direction, _ = LARS(0.9).direction(gradient, [np.zeros_like(weight)], 0, weight)
    np.testing.assert_array_equal(direction, gradient)


@pytest.mark.parametrize(("weight", "gradient"), [(1e-3, 2.0), (2.0, 1e-3)])
def test_lars_scales_by_small_norms(weight, gradient):
    gradient, slots = np.full((1, 1), gradient, "float32"), [np.zeros((1, 1), "float32")]
    direction, _ = LARS(0.9).direction(gradient, slots, 0, np.full((1, 1), weight, "float32"))
    np.testing.assert_allclose(direction, [[1e-3 * weight]], rtol=1e-6)


def test_muon_matches_keras():
    """Keras' own Muon, with the same momentum and learning rate, on a weight that is not an embedding."""
    theirs = keras.optimizers.Muon(momentum=0.95, nesterov=True, weight_decay=None, exclude_embeddings=False)
    variable = keras.Variable(WEIGHT, name="kernel")
    theirs.build([variable])
    for got, gradient, rate in zip(run(Muon(0.95, nesterov=True))[0], GRADIENTS, RATES, strict=True):
        theirs.learning_rate = rate
        theirs.apply([keras.ops.array(gradient)], [variable])
        # Differences of rounding grow by the steepness of the Newton-Schulz iteration, which is 3.4 at zero, in each of
        # five steps.
        np.testing.assert_allclose(got, variable, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(40, 8), (8, 40), (16, 16), (1, 5)])
def test_orthogonalized_matrix_keeps_its_singular_vectors(shape):
    matrix = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    inside = left.T @ np.asarray(orthogonalize(matrix)) @ right.T
    large = values > values.sum() * 1e-2  # the Newton-Schulz iteration leaves very small values small
    assert np.all((np.diag(inside)[large] > 0.6) & (np.diag(inside)[large] < 1.3))
    np.testing.assert_allclose(inside, np.diag(np.diag(inside)), atol=1e-4)


def test_orthogonalized_zeros_are_zeros():
    np.testing.assert_array_equal(orthogonalize(np.zeros((3, 2), np.float32)), np.zeros((3, 2)))


@pytest.mark.parametrize(
    ("shape", "input_axes", "rows"), [((6, 2, 3), 1, 6), ((2, 3, 6), 2, 6), ((3, 3, 4, 5), None, 36)]
)
def test_muon_reads_a_weight_as_a_matrix_from_inputs_to_outputs(shape, input_axes, rows):
    gradient = RNG.normal(size=shape).astype(np.float32)
    slots = [np.zeros(shape, np.float32)]
    direction, _ = Muon(input_axes=input_axes).direction(gradient, slots, 0)
    matrix, _ = Muon().direction(gradient.reshape(rows, -1), [slots[0].reshape(rows, -1)], 0)
    np.testing.assert_array_equal(direction, np.reshape(matrix, shape))


@pytest.mark.slow
def test_bfloat16_momentum_matches_jax_bit_for_bit():
    """The stored momentum is `g + 0.9 * m` with the product in bfloat16, as `optax.trace` computes it, rounded once."""
    jnp = pytest.importorskip("jax.numpy")
    _, (ours,) = run(Momentum(0.9, momentum_dtype="bfloat16"))
    stored = jnp.zeros(WEIGHT.shape, jnp.bfloat16)
    for gradient in GRADIENTS:
        stored = (gradient + 0.9 * stored).astype(jnp.bfloat16)
    assert ours.dtype == ml_dtypes.bfloat16
    assert ours.tobytes() == np.asarray(stored).tobytes()


def test_adamw_matches_the_formula():
    weight, first, second = WEIGHT.astype(np.float64), 0.0, 0.0
    for step, got in enumerate(run(AdamW(), weight_decay=0.1)[0]):
        gradient = GRADIENTS[step].astype(np.float64)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        corrected = first / (1 - 0.9 ** (step + 1)) / (np.sqrt(second / (1 - 0.999 ** (step + 1))) + 1e-8)
        weight = weight - RATES[step] * (corrected + 0.1 * weight)
        # 1 - 0.999**t keeps four digits in float32, in the reference, too.
        np.testing.assert_allclose(got, weight, rtol=1e-4, atol=1e-5)


def test_epsilon_is_added_outside_the_square_root():
    # A gradient of size epsilon: with epsilon outside, the first step is half a rate; Keras' Adam would differ.
    direction, _ = AdamW(epsilon=1e-8).direction(np.float32([1e-8]), [np.zeros(1, np.float32)] * 2, 0)
    np.testing.assert_allclose(direction, [0.5], rtol=1e-3)


def test_clipping_changes_no_bit_below_the_bound():
    gradients = [np.float32([3.0, 0.0]), np.float32([[4.0]])]
    norm = global_norm(gradients)
    assert float(norm) == 5.0
    for got, gradient in zip(clip_by_global_norm(gradients, norm, 5.1), gradients, strict=True):
        assert np.asarray(got).tobytes() == gradient.tobytes()
    clipped = clip_by_global_norm(gradients, norm, 1.0)
    np.testing.assert_allclose(global_norm(clipped), 1.0, rtol=1e-6)
    assert clip_by_global_norm(gradients, norm, 0.0)[0] is gradients[0]


def test_bfloat16_weights_stay_bfloat16():
    weight = np.asarray([1.0, 2.0], ml_dtypes.bfloat16)
    updated = apply_direction(weight, np.float32([1.0, 1.0]), 0.5)
    assert np.asarray(updated).astype(np.float32).tolist() == [0.5, 1.5]
    assert "bfloat16" in str(updated.dtype)


def test_moving_average_matches_the_formula():
    np.testing.assert_allclose(update_average(np.float32([1.0]), np.float32([2.0]), 0.9), [1.1], rtol=1e-6)


def test_optimizers_are_created_by_name():
    numbers = {"momentum": 0.8, "nesterov": True, "momentum_dtype": "bfloat16"}
    numbers |= {"beta1": 0.7, "beta2": 0.95, "epsilon": 1e-6}
    sgd = create_optimizer(recipes.Optim(name="sgd", **numbers))
    assert type(sgd) is Momentum and (sgd.momentum, sgd.nesterov) == (0.8, True)
    adamw = create_optimizer(recipes.Optim(name="adamw", **numbers))
    assert type(adamw) is AdamW and (adamw.beta1, adamw.beta2, adamw.epsilon) == (0.7, 0.95, 1e-6)
    assert [slot.dtype for slot in sgd.slots + adamw.slots] == ["bfloat16", "bfloat16", "float32"]
    lars = create_optimizer(recipes.Optim(name="lars", momentum=0.8, momentum_dtype="bfloat16"))
    assert isinstance(lars, LARS) and lars.momentum == 0.8 and lars.slots[0].dtype == "bfloat16"
    muon = create_optimizer(recipes.Optim(name="muon", momentum=0.8, nesterov=True, momentum_dtype="bfloat16"))
    assert isinstance(muon, Muon) and muon.momentum == 0.8 and muon.nesterov and muon.slots[0].dtype == "bfloat16"
    assert (Momentum().momentum, LARS().momentum, Muon().momentum) == (0.9, 0.9, 0.95)
    with pytest.raises(ValueError, match="'sgd'.*lion"):
        create_optimizer(recipes.Optim(name="lion"))


@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (1, 9), (9, 1), (3, 3)])
def test_muon_step_of_a_rank_one_matrix_matches_hand_computation(shape):
    """The Newton-Schulz iteration is a polynomial of the singular value, with the factor of arXiv:2502.16982, eq. 4."""
    rng = np.random.default_rng(5)
    left, right = (vector / np.linalg.norm(vector) for vector in (rng.normal(size=side) for side in shape))
    value = 1.0
    for _ in range(5):  # the coefficients of kellerjordan.github.io/posts/muon
        value = 3.4445 * value - 4.7750 * value**3 + 2.0315 * value**5
    gradient = 3.0 * np.outer(left, right)
    direction, _ = Muon().direction(gradient.astype("float32"), [np.zeros(shape, "float32")], 0)
    # Rounding grows by the steepness of the Newton-Schulz iteration, which is 3.4 at zero, in each of five steps.
    np.testing.assert_allclose(direction, 0.2 * max(shape) ** 0.5 * value * np.outer(left, right), atol=2e-4)


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
def test_step_applies_decay_and_layer_multiplier(path, multiplier, decay):
    """Decay belongs to the direction, so that the rates by depth scale it, too; the average is of the new weight."""
    update = rule(name="sgd", momentum=0.0, weight_decay=0.1, layer_decay=0.5, ema_momentum=0.9, clip_norm=0.0)
    new, average = apply(update, path, average=1.0)
    expected = 2.0 - 0.01 * multiplier * (3.0 + decay * 2.0)
    assert new == pytest.approx(expected, rel=1e-6)
    assert average == pytest.approx(0.9 + 0.1 * expected, rel=1e-6)


@pytest.mark.parametrize(("largest", "scale"), [(0.0, 1.0), (6.0, 1.0), (1.5, 0.5)])
def test_gradient_is_clipped_to_the_largest_norm(largest, scale):
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
