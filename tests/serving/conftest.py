"""One export that all tests of serving look at, and TF Serving's published messages."""

import functools

import pytest

from keras_vit.serving import saved_model
from tests.serving import small


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """A model, the directory of its one version (named "pets") and the comparison of the export. Not to be changed."""
    base = tmp_path_factory.mktemp("served") / "pets"
    model = small.model()
    _, comparison = saved_model.export_saved_model(
        model,
        str(base),
        preprocess=small.preprocess,
        description=small.description(),
        examples=small.examples(),
        max_pixels=1_000_000,
        extra_signatures=("features", "attention"),
    )
    return model, base, comparison


@pytest.fixture
def published():
    """Imports a module of `tensorflow-serving-api` by its name.

    That package requires `tensorflow`, which must not share an environment with `tensorflow-cpu`: it is
    installed without its dependencies.
    """
    return functools.partial(pytest.importorskip, reason="pip install --no-deps tensorflow-serving-api")
