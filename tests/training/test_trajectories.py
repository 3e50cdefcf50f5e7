"""The reference's training runs, reproduced step by step on one, two and four devices and with accumulation.

Two differences are expected. With Adam, the gradient of a key bias is zero but for rounding (softmax ignores it), and
Adam divides rounding by its own size: those biases take steps of a random sign in every implementation; they are left
out. With bfloat16 momentum, a gradient that differs in the last bit of float32 may round to the neighboring bfloat16
number: single weights then differ by the rate times one unit of bfloat16, which the tolerance admits.
"""

import pytest

from tests import selection
from tests.training import trajectories

RTOL = 1e-4


def four_devices(_, way):
    return selection.EXHAUSTIVE if way == "4 mirrored" else pytest.mark.slow


@pytest.mark.long
@pytest.mark.parametrize(("name", "way"), selection.cases(trajectories.CASES, (), four_devices))
def test_training_matches_the_reference(name, way, on_devices):
    found = on_devices(trajectories.WAYS[way][0])[f"{name}, {way}"]
    assert found["loss"] < RTOL
    assert found["rate"] < RTOL
    assert found.get("norm", 0) < RTOL
    for kind in ("weights", "averages"):
        wrong = {path: error for path, error in found[kind].items() if error > RTOL}
        if name == "traj_adamw":
            wrong = {path: error for path, error in wrong.items() if not path.endswith("key/bias")}
        assert not wrong
    assert bool(found["averages"]) == (name == "traj_adamw")
    assert found["traces"] == 1
