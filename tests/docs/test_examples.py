"""The examples of docstrings run, and every public name that users call has one.

Examples may use `model`, a Vision Transformer of two blocks for ten classes, `images`, four images for it, and the
files `images/cat.png`, `images/ages.csv` and `runs/digits`, a finished run.
"""

import doctest
import importlib
import inspect
import pathlib
import shutil

import keras
import numpy as np
import pytest

import keras_vit
from tests.docs import public_names, snippets

ROOT = pathlib.Path(__file__).parents[2]
OFFERED = {"keras_vit.recipe": "keras_vit.tasks"}  # a package with the public names of another package
# Each example calls `predict` of another model in the same process.
RETRACING = ".* triggered tf.function retracing"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def needs_example(value):
    """Return whether users call an object: exceptions and protocols are only named."""
    return not (inspect.isclass(value) and (issubclass(value, Exception) or getattr(value, "_is_protocol", False)))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A directory with the files, and the names that all examples may use."""
    keras.utils.set_random_seed(0)
    folder = tmp_path_factory.mktemp("examples")
    sizes = {"patch_size": 8, "hidden_size": 32, "num_layers": 2, "num_heads": 2, "mlp_dim": 64}
    model = keras_vit.VisionTransformer(**sizes, image_size=32, classes=10)
    images = np.random.default_rng(0).uniform(-1, 1, (4, 32, 32, 3)).astype("float32")
    (folder / "images").mkdir()
    keras.utils.save_img(folder / "images" / "cat.png", 127 * images[0] + 128, scale=False)
    (folder / "images" / "ages.csv").write_text("path,age\ncat.png,31\ndog.png,47\n")
    shutil.copytree(ROOT / "tests" / "runs" / "data" / "run", folder / "runs" / "digits")
    return folder, {"keras": keras, "keras_vit": keras_vit, "np": np, "model": model, "images": images}


@pytest.mark.slow
@pytest.mark.parametrize("package", public_names.PACKAGES)
def test_docstring_examples_run(package, workspace, monkeypatch):
    folder, names = workspace
    monkeypatch.chdir(folder)
    if package.endswith("plots"):
        pytest.importorskip("matplotlib")
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    attempted = 0
    for name, value in public_names.objects_of(package).items():
        module = importlib.import_module(value.__module__)
        shared = vars(importlib.import_module(package))
        example = doctest.DocTestParser().get_doctest(
            inspect.getdoc(value) or "", {**shared, **vars(module), **names}, name, package, 0
        )
        packages = (package, OFFERED.get(package, package))
        if example.examples and value.__module__.startswith(packages):  # other packages run their own examples
            names["model"].input_normalization = None  # an example sets another one
            with snippets.warnings_are_errors(RETRACING):
                result = runner.run(example)
            attempted += result.attempted
            assert not result.failed, f"the example of {package}.{name}"
    assert attempted


@pytest.mark.parametrize("package", public_names.PACKAGES)
def test_every_public_name_has_an_example(package):
    missing = [
        name
        for name, value in public_names.objects_of(package).items()
        if needs_example(value) and "Example:\n" not in (inspect.getdoc(value) or "")
    ]
    assert not missing, missing
