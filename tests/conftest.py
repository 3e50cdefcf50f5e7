"""Set-up shared by all tests: a quiet TensorFlow, fixed seeds, golden data."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import pytest  # noqa: E402

from tests import golden_data  # noqa: E402


@pytest.fixture(autouse=True)
def fixed_seeds():
    """Every test starts from the same random state, whatever ran before it."""
    import keras

    keras.utils.set_random_seed(0)


@pytest.fixture
def golden():
    """`golden("vit_gap")` gives the arrays of `tests/golden/vit_gap.npz` and its description under "meta"."""
    return golden_data.load
