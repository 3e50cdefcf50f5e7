"""Collects `test_on_jax.py` where JAX is the backend, and of its tests a part if `PART_OF_TESTS` is "1/2" or "2/2"."""

import functools
import json
import os
import subprocess
import sys

import pytest

from tests.made_once import made_once
from tests.training import worlds

collect_ignore = [] if os.environ.get("KERAS_BACKEND") == "jax" else ["test_on_jax.py"]


@pytest.hookimpl(trylast=True)  # of what is selected
def pytest_collection_modifyitems(items):
    part, _, parts = os.environ.get("PART_OF_TESTS", "1/1").partition("/")
    first, last = (len(items) * count // int(parts) for count in (int(part) - 1, int(part)))
    items[:] = items[first:last]


@pytest.fixture(scope="session")
def on_devices(tmp_path_factory):
    """A function of a number of virtual devices to the results of `virtual_devices.py` on them."""

    def make(devices, directory):
        command = [sys.executable, "-m", "tests.training.virtual_devices", str(devices)]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
        done = subprocess.run(command, cwd=worlds.ROOT, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-4000:]
        (directory / "errors.json").write_text(done.stdout)

    @functools.cache
    def results(devices):
        directory = made_once(tmp_path_factory, f"{devices}_devices", functools.partial(make, devices))
        return json.loads((directory / "errors.json").read_text())

    return results
