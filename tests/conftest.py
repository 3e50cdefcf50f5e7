"""Set-up shared by all tests: a quiet TensorFlow, fixed seeds, golden data."""

import os
import pathlib
import runpy

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import pytest  # noqa: E402

from tests import golden_data  # noqa: E402
from tests.no_skips import pytest_addoption, pytest_terminal_summary  # noqa: E402, F401


@pytest.fixture(autouse=True)
def fixed_seeds():
    """Every test starts from the same random state, whatever ran before it."""
    import keras

    keras.utils.set_random_seed(0)


@pytest.fixture
def golden():
    """`golden("vit_gap")` gives the arrays of `tests/golden/vit_gap.npz` and its description under "meta"."""
    return golden_data.load


@pytest.fixture(scope="session")
def metadata():
    """What `setup.py` hands to setuptools."""
    import setuptools

    arguments = {}
    original, setuptools.setup = setuptools.setup, arguments.update
    try:
        names = runpy.run_path(str(pathlib.Path(__file__).parents[1] / "setup.py"))
    finally:
        setuptools.setup = original
    assert callable(names["setup"])
    return arguments
