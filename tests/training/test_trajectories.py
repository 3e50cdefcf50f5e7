"""The reference's training runs, reproduced step by step on one, two and four devices and with accumulation.

Two differences are expected. With Adam, the gradient of a key bias is zero but for rounding (softmax ignores it), and
Adam divides rounding by its own size: those biases take steps of a random sign in every implementation; they are left
out. With bfloat16 momentum, a gradient that differs in the last bit of float32 may round to the neighboring bfloat16
number: single weights then differ by the rate times one unit of bfloat16, which the tolerance admits.
"""

import functools
import json
import os
import subprocess
import sys

import pytest

from tests.training import trajectories
from tests.training.worlds import ROOT

RTOL = 1e-4


@functools.cache
def errors(devices):
    """Results of `tests.training.trajectories` with a number of virtual devices."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-m", "tests.training.trajectories", str(devices)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), trajectories.CASES)
def test_trajectory(name, way):
    found = errors(trajectories.WAYS[way][0])[f"{name}, {way}"]
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
