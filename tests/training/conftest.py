"""Collects `test_on_jax.py` where JAX is the backend."""

import functools
import json
import os

import pytest

from tests import forked
from tests.cached_files import cached_directory
from tests.training import small_runs

collect_ignore = [] if os.environ.get("KERAS_BACKEND") == "jax" else ["test_on_jax.py"]


@pytest.fixture(scope="session")
def on_devices(tmp_path_factory):
    """A function of a number of virtual devices to the results of `virtual_devices.py` on them."""

    def make(devices, directory):
        arguments = [devices, directory / "errors.json"]
        program = forked.Program(small_runs.ROOT, "tests.training.virtual_devices", arguments, os.environ)
        output, _ = program.communicate(600)
        assert program.returncode == 0, output[-4000:]

    @functools.cache
    def results(devices):
        directory = cached_directory(tmp_path_factory, f"{devices}_devices", functools.partial(make, devices))
        return json.loads((directory / "errors.json").read_text())

    return results
