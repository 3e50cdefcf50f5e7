"""README.md says what is true: its Python runs, its tables are complete, its files exist."""

import pathlib
import re

import keras
import numpy as np
import pytest

import keras_vit
from tests.models.test_counts import COUNTS

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_table_of_models(readme):
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| ([\d,]+) \|", readme, re.MULTILINE)
    assert sorted(name for _, name, _ in rows) == sorted(keras_vit.list_models())
    for constructor, name, parameters in rows:
        assert callable(getattr(keras_vit, constructor)), constructor
        if name in COUNTS:
            assert int(parameters.replace(",", "")) == COUNTS[name]


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "docs" / "programs.md"], ids=lambda path: path.name)
def test_every_program_is_listed_with_its_command(path, metadata):
    rows = r"^\| `((?:train|export)\.\w+)[^|]*\| `([\w-]+)` \|"
    listed = dict(re.findall(rows, path.read_text(encoding="utf-8"), re.MULTILINE))
    entries = (entry.split(" = ") for entry in metadata["entry_points"]["console_scripts"])
    assert listed == {target.removeprefix("keras_vit.").removesuffix(":run"): command for command, target in entries}


def test_every_extra_is_listed(readme, metadata):
    (table,) = re.findall(r"^\| extra \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", readme, re.MULTILINE)
    listed = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(listed) == sorted(metadata["extras_require"])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files(path):
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / link).exists(), f"{path.name} links to {link}"


@pytest.mark.slow
def test_python_runs(readme, tmp_path, monkeypatch):
    # The text as it is, on a narrow model, two pictures for each of two classes, and one step instead of 500.
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    narrow = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "mlp_dim": 64}
    monkeypatch.setattr(keras_vit, "ViT_B16", lambda **given: keras_vit.create_model("ViT-B/16", **narrow, **given))
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("rose", "rose", "tulip", "tulip")):
        path = tmp_path / "pictures" / "train" / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(path, np.full((40, 50, 3), 60 * number, "uint8"), scale=False)
    keras_vit.save_checkpoint(keras_vit.ViT_B16(classes=5), "ViT-B_16.npz", format="google")
    small = code.replace("steps_per_epoch=100, epochs=5", "steps_per_epoch=1, epochs=1").replace(
        "batch_size=32", "batch_size=2"
    )
    assert small.count("epochs=1)") == small.count("batch_size=2") == 1
    names = {}
    exec(compile(small, "README.md", "exec"), names)
    images = np.zeros((1, 224, 224, 3), "float32")
    loaded = keras.models.load_model("pictures.keras")
    assert loaded.output_shape == (None, 2)
    np.testing.assert_array_equal(loaded.predict(images, verbose=0), names["model"].predict(images, verbose=0))
    assert (tmp_path / "pictures_saved_model" / "saved_model.pb").exists()
