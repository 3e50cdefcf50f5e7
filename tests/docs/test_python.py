"""The Python of the documentation runs: all blocks of a page in order, in a directory with what they open.

Where a text builds a published variant, a narrow one takes its place; published weights become random ones; `fit`
takes one step. A block that needs what is not here says so (see `pages.REASONS`).
"""

import functools
import pathlib
import re
import shutil

import keras
import numpy as np
import pytest
from absl import flags

import keras_vit
from keras_vit.models import registry
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
    return create_model(name, **{**NARROW, **arguments})


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A directory with images and checkpoints, narrow variants, and short fits."""
    create_model = keras_vit.create_model
    for name in keras_vit.list_models():
        constructor = registry.constructor_name(name)
        if not name.startswith("BiT"):
            monkeypatch.setattr(keras_vit, constructor, functools.partial(narrow, name, create_model))
    monkeypatch.setattr(keras_vit, "create_model", lambda name, **arguments: narrow(name, create_model, **arguments))
    fit = keras.Model.fit

    def one_step(self, *args, **kwargs):
        return fit(self, *args, **{**kwargs, "epochs": 1, "steps_per_epoch": 1, "verbose": 0})

    monkeypatch.setattr(keras.Model, "fit", one_step)
    pages.compile_for_a_few_steps(monkeypatch)
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for split, count in (("train", 32), ("test", 4)):
        for label, name in enumerate(("rose", "tulip")):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for number in range(count // 2):
                pixels = rng.integers(0, 128, (40, 50, 3)) + 127 * label
                keras.utils.save_img(folder / f"{number}.jpg", pixels.astype("uint8"), scale=False)
    keras.utils.save_img(tmp_path / "image.jpg", rng.integers(0, 256, (300, 400, 3)).astype("uint8"), scale=False)
    yield tmp_path
    for flag in set(flags.FLAGS):  # those of a program that a page shows
        if flags.FLAGS.find_module_defining_flag(flag) == __name__:
            delattr(flags.FLAGS, flag)


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


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in pages.PAGES if python_blocks(page)], ids=pages.name_of)
def test_python_runs(page, workspace):
    text = page.read_text(encoding="utf-8")
    prepare(text, workspace, keras_vit.create_model)
    if page.name == "README.md" and page.parent == pages.ROOT:  # its Python follows its quick start
        shutil.rmtree("images")
        assert not test_quick_start.call("sample-data")
    rng = np.random.default_rng(0)
    names = {"__name__": "documentation"}
    for split, count in (("train", 200), ("test", 50)):  # features that a text may start from
        names[f"{split}_features"] = rng.normal(size=(count, 16)).astype("float32")
        names[f"{split}_labels"] = np.arange(count) % 10
    for block in python_blocks(page):
        if block.needs is None:
            code = "\n" * (block.line - 1) + block.code
            exec(compile(code, pages.name_of(page), "exec"), names)
    CHECKS.get(pages.name_of(page), lambda names: None)(names)


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)
def test_reasons_are_known(page):
    for block in pages.blocks(page.read_text(encoding="utf-8")):
        assert block.needs is None or block.needs in pages.REASONS, f"line {block.line}: {block.needs}"


def test_blocks_are_found():
    text = "a\n<!-- docs: needs network -->\n\n```python\nx\n```\n- b\n  ```bash\n  y\n  ```\n"
    assert [(block.language, block.code, block.line, block.needs) for block in pages.blocks(text)] == [
        ("python", "x\n", 5, "network"),
        ("bash", "y\n", 9, None),
    ]


@pytest.mark.parametrize("page", [page for page in pages.PAGES if python_blocks(page)], ids=pages.name_of)
def test_steps_of_an_epoch_are_at_least_one(page):
    """`source.num_examples // 128` is 0 for a small data set, and Keras takes 0 steps of endless batches as endless."""
    for block in python_blocks(page):
        assert not re.search(r"(num_examples|len\([^)]*\)|cardinality\(\)) *// *\w+\s*($|#)", block.code, re.MULTILINE)
