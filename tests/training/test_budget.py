"""The number of steps for a time limit, with a simulated clock."""

import types

import numpy as np
import pytest

from keras_vit import recipe as recipes
from keras_vit.training import budget

COMPILING = 10.0


class Backend:
    """Compiles in ten seconds, and then takes some seconds per step. It is also the state that the steps change."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.ran, self.weight = clock, seconds, [], np.zeros(1)

    def run_steps(self, batches, first, count):
        self.clock.now += self.seconds * count + (0 if self.ran else COMPILING - self.seconds * count)
        self.ran += range(first, first + count)
        self.weight += 1

    def values(self):
        yield "weight", self.weight

    def assign(self, values):
        self.weight = values["weight"]

    def mean(self, value):
        return float(np.mean([value]))


def fields(recipe, backend, data, started=0.0, seconds_per_image=None):
    """The planned fields; the measured steps change nothing."""
    found = budget.fields(recipe, backend, data, backend, backend.run_steps, started, seconds_per_image)
    assert backend.weight == 0
    return found


@pytest.fixture
def clock(monkeypatch):
    found = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(budget.time, "monotonic", lambda: found.now)
    return found


def data_of(train=64, evaluation=64):
    """Data of as many examples."""
    splits = {
        "train": types.SimpleNamespace(num_examples=train),
        "eval": types.SimpleNamespace(num_examples=evaluation),
    }
    return types.SimpleNamespace(task=None, channels=3, test=None, train_batches=lambda step: [], **splits)


@pytest.mark.parametrize("seconds", [0.05, 0.5, 5.0])
def test_steps_fill_the_remaining_time(seconds, clock, caplog):
    caplog.set_level("INFO", "absl")
    clock.now = 120.0  # 20 seconds after the start, the data are open
    backend = Backend(clock, seconds)
    recipe = recipes.Recipe(total_steps=10_000, time=600.0, data=recipes.Data(batch_size=16))
    planned = fields(recipe, backend, data_of(1_000), started=100.0)
    measured = clock.now - 120 - COMPILING
    # An evaluation of 64 images in batches of 16 is compiled and run.
    left = 600 - 20 - COMPILING - measured - COMPILING - 4 * seconds / 2
    assert -1e-6 < 0.8 * left - planned["total_steps"] * seconds < seconds + 1e-6
    assert f"{planned['total_steps'] * 16 / 1_000:.3g} passes over 1,000 images" in caplog.text
    assert len(backend.ran) >= 2 and backend.ran == list(range(len(backend.ran))) and 3 <= measured < 3 + 2 * seconds
    assert bool([text for text in caplog.messages if "rarely suffice" in text]) == (planned["total_steps"] < 100)


@pytest.mark.parametrize(("time", "total"), [(150.0, 100), (148.0, 98)])
def test_hundred_steps_give_no_warning(time, total, clock, caplog):
    """80% of the time after 25 s, at one second each."""
    caplog.set_level("INFO", "absl")
    recipe = recipes.Recipe(time=time, data=recipes.Data(batch_size=16))
    assert fields(recipe, Backend(clock, 1.0), data_of())["total_steps"] == total
    assert f"steps: {total} fit into 2:{time - 120:.0f}, at 1 s each (" in caplog.text
    assert ("rarely suffice" in caplog.text) == (total < 100)


def test_processes_plan_with_the_mean_of_their_times(clock):
    """Here the other processes take three times as long: one step is measured, and all times are twice as large."""
    backend = Backend(clock, 2.0)
    backend.mean = lambda value: 2 * value
    recipe = recipes.Recipe(time=200.0, data=recipes.Data(batch_size=16))
    planned = fields(recipe, backend, data_of())
    assert backend.ran == [0, 1]
    # Steps of 4 s; 12 s and 10 s, both twice; and an evaluation of four batches of 2 s.
    assert planned["total_steps"] == int(0.8 * (200 - 44 - 8) / 4)


@pytest.mark.parametrize(("time", "steps"), [(5.0, 0), (37.0, 9), (38.0, None)])
def test_a_time_for_fewer_than_ten_steps_is_refused(time, steps, clock):
    """The fixed costs are 10 s twice, 3 steps, and 4 batches of half a step."""
    recipe, backend = recipes.Recipe(time=time, data=recipes.Data(batch_size=16)), Backend(clock, 1.0)
    if steps is None:
        assert fields(recipe, backend, data_of())["total_steps"] == 10
        return
    with pytest.raises(ValueError, match=f"for {steps} steps of 1 s: .* about 0:25. Increase --time to at least 0:38"):
        fields(recipe, backend, data_of())


@pytest.mark.parametrize(
    ("time", "seconds_per_image", "measured", "total"),
    [
        # After a fitted head, the evaluation is compiled already: 80% of the time after 15 s.
        (140.0, None, True, 100),
        (138.0, None, True, 0),
        (138.0, 0.01, True, 0),  # the forward and backward pass of LoRA take at least 0.32 s
        (39.0, 0.01, False, 0),  # for 97 steps
        (41.0, 0.01, True, 0),  # for 102 steps
        (-1.0, None, False, 0),  # the time is over
    ],
)
def test_a_fitted_head_is_the_result_where_few_steps_fit(time, seconds_per_image, measured, total, clock, caplog):
    caplog.set_level("INFO", "absl")
    data, backend = recipes.Data(batch_size=16), Backend(clock, 1.0)
    recipe = recipes.Recipe(time=time, adapt="lora", head_images=64, data=data)
    assert fields(recipe, backend, data_of(), 0.0, seconds_per_image)["total_steps"] == total
    assert bool(backend.ran) == measured
    assert ("The fitted head is the result" in caplog.text) == (not total)
    assert ("a --time of more than 3 minutes" in caplog.text) == (measured and not total)
