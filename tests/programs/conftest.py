"""A run on the digits and its artifacts, created once for the tests of all programs, which must not change them."""

import shutil
import types

import keras
import pytest

from keras_vit import data
from tests import tiny
from tests.cached_files import cached_directory
from tests.data import example_images
from tests.programs import call


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """The directory of a run, its model, and the logits of that model on the 360 test digits, worked out here."""
    directory = cached_directory(tmp_path_factory, "digits", tiny.write_digits_run)
    model = keras.models.load_model(directory / "model.keras")
    source = data.open_source("digits", "test")
    logits = model.predict(source.images.astype("float32") / 127.5 - 1, verbose=0)
    return types.SimpleNamespace(directory=directory, model=model, logits=logits, source=source)


@pytest.fixture(scope="session")
def run(digits):
    """The directory of the run."""
    return digits.directory


@pytest.fixture(scope="session")
def saved_model(run, tmp_path_factory):
    """The SavedModel of the run."""

    def make(directory):
        arguments = (f"--model={run}", f"--output={directory / 'digits'}", "--signature=features", "--num_images=20")
        assert call("export.main", *arguments, "--batch_sizes=1,2") == 0

    return cached_directory(tmp_path_factory, "served_digits", make) / "digits"


@pytest.fixture(scope="session")
def tflite_file(run, tmp_path_factory):
    """The TFLite file of the run."""

    def make(directory):
        path = directory / "digits.tflite"
        assert call("export.main", "--format=tflite", f"--model={run}", f"--output={path}", "--num_images=20") == 0

    return cached_directory(tmp_path_factory, "tflite_digits", make) / "digits.tflite"


@pytest.fixture
def folder(tmp_path):
    """33 images; one cannot be read, one occurs twice with another class."""
    root = example_images.folder(tmp_path / "p")
    (tmp_path / "p" / "cat" / "bad.jpg").write_bytes(b"")
    shutil.copy(tmp_path / "p" / "cat" / "1.png", tmp_path / "p" / "dog" / "copy.png")
    return root
