"""Learning-rate schedules against the reference's formulas and golden values."""

import math

import numpy as np
import pytest

from keras_vit import recipe as recipes
from keras_vit.optim import create_schedule


def rates(total_steps, base=1.0, steps=None, **numbers):
    rate = create_schedule(recipes.Schedule(**numbers), base, total_steps)
    return [float(rate(step)) for step in (steps if steps is not None else range(total_steps))]


@pytest.mark.parametrize("name", ["traj_sgd_float32", "traj_adamw"])
def test_learning_rates_match_golden_values(golden, name):
    data = golden(name)
    meta = data["meta"]
    linear = meta["decay"].startswith("linear")
    got = rates(
        meta["total_steps"],
        meta["base_lr"],
        name="linear" if linear else "cosine",
        warmup_steps=meta["warmup_steps"],
        end=1e-5 if linear else 0.0,
    )
    np.testing.assert_allclose(got, data["lrs"], rtol=1e-6)  # float32 rounding


@pytest.mark.slow
def test_warm_up_starts_at_zero_and_reaches_the_peak():
    got = rates(100, base=0.5, name="cosine", warmup_steps=10)
    assert got[0] == 0
    np.testing.assert_allclose(got[5], 0.25 * (1 + math.cos(0)) / 2, rtol=1e-6)
    assert got[10] == pytest.approx(0.5)
    assert got[99] == pytest.approx(0.5 * 0.5 * (1 + math.cos(math.pi * 89 / 90)), rel=1e-4)


@pytest.mark.slow
def test_steps_fall_at_their_boundaries():
    # BiT-HyperRule for small data: tenfold lower from steps 200, 300 and 400 on; warm-up over the first 100.
    got = rates(500, base=0.003, name="steps", warmup_steps=100, boundaries=(200, 300, 400))
    expected = [0.003 * min(1, step / 100) * 0.1 ** sum(step >= b for b in (200, 300, 400)) for step in range(500)]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize(("name", "middle"), [("cosine", 0.55), ("linear", 0.55), ("constant", 1.0)])
def test_decays_end_at_their_last_rate(name, middle):
    last = 1.0 if name == "constant" else 0.1
    assert rates(10, steps=[0, 5, 10, 12], name=name, end=0.1) == pytest.approx([1.0, middle, last, last])


def test_rate_drops_by_the_given_factor_at_a_boundary():
    """Boundaries count from the first step of the run, and the boundary is the first step with the lower rate."""
    found = rates(8, steps=[3, 4, 5, 6], name="steps", warmup_steps=3, boundaries=(4, 6), factor=0.5)
    assert found == pytest.approx([1.0, 0.5, 0.5, 0.25])


def test_rsqrt_with_cooldown_matches_the_formula():
    steps = [0, 5, 10, 30, 89, 95, 100]
    got = rates(100, steps=steps, name="rsqrt", warmup_steps=10, timescale=20, cooldown_steps=10)
    expected = []
    for step in steps:
        value = 1 / math.sqrt(1 + max(0, step - 10) / 20) * min(1, step / 10)
        expected.append(value * min(1, (100 - step) / 10))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
    assert got[-1] == 0


def test_constant_rate_and_warm_up_longer_than_the_run():
    assert rates(3, base=0.1, name="constant") == pytest.approx([0.1] * 3)
    assert rates(3, base=0.1, name="cosine", warmup_steps=10) == pytest.approx([0, 0.01, 0.02])


def test_wrong_names_and_orders_are_refused():
    with pytest.raises(ValueError, match="'constant', 'cosine'.*'cosin'"):
        create_schedule(recipes.Schedule(name="cosin"), 0.1, 10)
    with pytest.raises(ValueError, match="must increase"):
        create_schedule(recipes.Schedule(name="steps", boundaries=(5, 3)), 0.1, 10)
