"""Run all Python blocks of a page in order as one script, in a directory with the files that the page opens.

    python -m tests.docs.snippets docs/models.md DIRECTORY

Narrow models take the place of published variants, random weights the place of published weights, and `fit` takes one
step. A warning, also one that TensorFlow logs, is an error.
"""

import contextlib
import functools
import logging
import os
import pathlib
import re
import runpy
import shutil
import sys
import warnings

import keras
import numpy as np

import keras_vit
from tests.docs import pages, test_quick_start

NARROW = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "mlp_dim": 64}


def python_blocks(page):
    return [block for block in pages.blocks(page.read_text(encoding="utf-8")) if block.language == "python"]


def narrow(name, create_model, weights=None, **arguments):
    """Build a narrow model in place of a published variant."""
    if isinstance(weights, str) and weights.endswith(".npz"):
        model = create_model(name, **{**NARROW, **arguments})
        keras_vit.load_checkpoint(model, weights)
        return model
    arguments.setdefault("classes", 1000)
    model = create_model(name, **{**NARROW, **arguments})
    for head in (layer for layer in model.layers if weights and layer.name == "head" and layer.weights):
        # A published head is not zero, as that of a new model is.
        head.kernel.assign(np.random.default_rng(0).normal(0, 0.02, head.kernel.shape))
    return model


def make_workspace(folder):
    """Put images into a directory, narrow variants in place of the published ones, and shorten `fit`."""
    create_model = keras_vit.create_model
    for name in keras_vit.list_models():
        if not name.startswith("BiT"):
            constructor = functools.partial(narrow, name, create_model)
            setattr(keras_vit, keras_vit.models.constructor_name(name), constructor)
    keras_vit.create_model = lambda name, **arguments: narrow(name, create_model, **arguments)
    fit = keras.Model.fit

    def one_step(self, *args, **kwargs):
        return fit(self, *args, **{**kwargs, "epochs": 1, "steps_per_epoch": 1, "verbose": 0})

    keras.Model.fit = one_step
    rng = np.random.default_rng(0)
    for split, count in (("train", 32), ("test", 4)):
        for label, name in enumerate(("rose", "tulip")):
            directory = folder / "images" / split / name
            directory.mkdir(parents=True)
            for number in range(count // 2):
                pixels = rng.integers(0, 128, (40, 50, 3)) + 127 * label
                keras.utils.save_img(directory / f"{number}.jpg", pixels.astype("uint8"), scale=False)
    keras.utils.save_img(folder / "image.jpg", rng.integers(0, 256, (300, 400, 3)).astype("uint8"), scale=False)


def prepare(text, folder, create_model):
    """Write the files that a page opens."""
    model = create_model("ViT-B/16", classes=1000)
    for name in set(re.findall(r'"(ViT[\w.-]+\.npz)"', text)):
        keras_vit.save_checkpoint(model, name, format="google")
    for name, format in (
        ("vit_base_patch16_224/", "timm"),
        ("vit-base-patch16-224/", "huggingface"),
        ("vit-base/", "huggingface"),
    ):
        if f'"{name}"' in text:
            keras_vit.save_checkpoint(create_model("ViT-B/16", classes=1000, activation="gelu"), name, format=format)
    if '"vit.safetensors"' in text:
        details = {"patch_norm": True, "qkv_bias": False, "activation": "gelu", "layer_norm_epsilon": 1e-5}
        model = create_model("ViT-B/16", classes=1000, num_heads=16, head_dim=4, **details)
        keras_vit.save_checkpoint(model, "vit.safetensors", format="vit_pytorch")


def check_readme(names):
    """The saved model is the trained one, for the ten classes of the quick start."""
    images = np.random.default_rng(0).uniform(-1, 1, (2, 224, 224, 3))
    loaded = keras.models.load_model("fine_tuned.keras")
    assert loaded.output_shape == (None, 10)
    np.testing.assert_array_equal(loaded(images), names["model"](images))


def check_inspection(names):
    """Arrays have the shapes that the comments state; the figure was written."""
    assert names["maps"]["encoderblock_0"].shape == (4, 2, 197, 197)  # narrow models have two heads
    assert {name: names[name].shape for name in ("rollout", "where", "why")} == {
        "rollout": (4, 197, 197),
        "where": (4, 14, 14),
        "why": (4, 14, 14),
    }
    assert names["overlaid"].shape == (224, 224, 3)
    assert pathlib.Path("layers.svg").exists()


CHECKS = {"README.md": check_readme, "docs/inspection.md": check_inspection}


@contextlib.contextmanager
def warnings_are_errors(*accepted):
    """Raise an error for each warning that Python shows by default, and at the end for what TensorFlow has logged.

    Texts that begin with one of the patterns in `accepted` are ignored.
    """
    logged = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())
    loggers = [logging.getLogger(name) for name in ("tensorflow", "absl", "jax")]
    for logger in loggers:
        logger.addHandler(handler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for ignored in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", ignored)
        # Keras warns at each `fit` of a `tf.data.Dataset`, also where the caller has not passed `shuffle`.
        for pattern in ("`shuffle=True` was passed", *accepted):
            warnings.filterwarnings("ignore", pattern)
        yield
    for logger in loggers:
        logger.removeHandler(handler)
    logged = [text for text in logged if not any(re.match(pattern, text) for pattern in accepted)]
    assert not logged, logged


def run(page, folder):
    """Run the blocks of a page that can run here as one script, whose lines have the numbers of the page's."""
    text = page.read_text(encoding="utf-8")
    prepare(text, folder, keras_vit.create_model)
    if page == pages.ROOT / "README.md":  # its Python follows its quick start
        shutil.rmtree("images")
        assert not test_quick_start.call("sample-data")
    rng = np.random.default_rng(0)
    names = {}
    for split, count in (("train", 200), ("test", 50)):  # features that a text may start from
        names[f"{split}_features"] = rng.normal(size=(count, 16)).astype("float32")
        names[f"{split}_labels"] = np.arange(count) % 10
    names["true_ages"], names["predicted_ages"] = rng.normal(40.0, 10.0, size=(2, 50, 1))
    script = ""
    for block in python_blocks(page):
        if block.needs is None:
            script += "\n" * (block.line - 1 - script.count("\n")) + block.code
    file = pathlib.Path(f"{page.stem}.py")
    file.write_text(script, encoding="utf-8")
    with warnings_are_errors():
        names = runpy.run_path(str(file), names, "documentation")
    CHECKS.get(pages.name_of(page), lambda names: None)(names)


if __name__ == "__main__":
    directory = pathlib.Path(sys.argv[2]).resolve()
    make_workspace(directory)
    os.chdir(directory)
    run(pages.ROOT / sys.argv[1], directory)
