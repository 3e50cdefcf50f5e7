"""Set-up shared by all tests: a quiet TensorFlow, fixed seeds, golden data."""

import dataclasses
import functools
import gc
import json
import os
import pathlib
import runpy
import sys
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as keras_vit; some tests import TensorFlow first
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
if "PYTEST_XDIST_WORKER" in os.environ:  # the processes share the cores: threads of one would only wait for the other's
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import pytest  # noqa: E402

from tests import golden_data  # noqa: E402
from tests.no_skips import pytest_addoption, pytest_terminal_summary  # noqa: E402, F401


@pytest.fixture(autouse=True, scope="module")
def fresh_kernels():
    """Start each module without the kernels and functions that TensorFlow has compiled for others, to save memory."""
    import keras

    keras.utils.set_random_seed(0)
    leave_out_of_collections()


@pytest.fixture(autouse=True)
def collections_stay_short(request):
    """Collect only the objects that a test has created: collections of all objects took a third of the time."""
    yield
    if request.node.get_closest_marker("slow"):
        leave_out_of_collections()


def leave_out_of_collections():
    """Collect garbage a last time and exclude the remaining objects, which mostly live until the process ends."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seeds():
    """Start every test from the same random state, whatever ran before it.

    No test draws from TensorFlow's own state. Its seed stays, because a new one makes TensorFlow compile again what the
    tests of a module share.
    """
    import keras
    import tensorflow as tf

    with mock.patch.object(tf.random, "set_seed"):
        keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def no_determinism_left():
    """A training run makes TensorFlow deterministic for good, and XLA then refuses the gradient of max pooling."""
    yield
    if config := sys.modules.get("tensorflow.python.framework.config"):
        config.disable_op_determinism()  # there is no public way back


def pytest_collection_modifyitems(items):
    """Start with the longest tests, so that the processes finish at about the same time."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_sessionfinish():
    """Keep the collection of garbage at the end short: after 5 s, pytest-xdist interrupts its workers with SIGINT."""
    gc.freeze()


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


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """A model, the directory of its one version (named "pets") and the comparison of the export. Not to be changed.

    One block, because every process that opens the artifact prepares its graphs anew.
    """
    from keras_vit.exporting import saved_model, verify
    from tests import tiny
    from tests.cached_files import cached_directory

    model = tiny.model(num_layers=1)

    def make(directory):
        _, comparison = saved_model.write(
            model,
            str(directory / "pets"),
            card=tiny.card(),
            images=tiny.images(),
            max_pixels=1_000_000,
            extra_signatures=("features",),
        )
        (directory / "comparison.json").write_text(json.dumps(dataclasses.asdict(comparison)))

    directory = cached_directory(tmp_path_factory, "served", make)
    comparison = verify.Comparison(**json.loads((directory / "comparison.json").read_text()))
    return model, directory / "pets", comparison


@pytest.fixture(scope="session")
def served_artifact(served):
    """The artifact of `served`, opened by the server's loader."""
    from keras_vit.inference.saved_model import SavedModelPredictor

    return SavedModelPredictor(str(served[1] / "1"))


@pytest.fixture
def published():
    """Imports a module of `tensorflow-serving-api` by its name.

    That package requires `tensorflow`, which must not share an environment with `tensorflow-cpu`: it is installed
    without its dependencies.
    """
    return functools.partial(pytest.importorskip, reason="pip install --no-deps tensorflow-serving-api")
