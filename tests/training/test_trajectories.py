"""The reference's training runs, reproduced step by step on one, two and four devices and with accumulation.

Two differences are expected. With Adam, the gradient of a key bias is zero but for rounding (softmax ignores it), and
Adam divides rounding by its own size: those biases take steps of a random sign in every implementation; they are left
out. With bfloat16 momentum, a gradient that differs in the last bit of float32 may round to the neighbouring bfloat16
number: single weights then differ by the rate times one unit of bfloat16, which the tolerance admits.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.training import trajectories
from tests.training.worlds import ROOT

RTOL = 1e-4


@pytest.fixture(scope="module")
def errors():
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.training.trajectories", devices],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for devices in ("2", "4")
    ]
    found = {}
    for process in processes:
        output, problems = process.communicate(timeout=300)
        assert process.returncode == 0, problems[-4000:]
        found |= json.loads(output)
    return found


@pytest.mark.parametrize(("name", "way"), trajectories.CASES)
def test_trajectory(errors, name, way):
    found = errors[f"{name}, {way}"]
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
