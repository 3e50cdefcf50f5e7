"""The types of the public interface, as a user's type checker sees them."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
USER = """
import keras_vit

model = keras_vit.ViT_B16(image_size=224, classes=3, pooling="gap")
keras_vit.load_checkpoint(model, "file.npz")
keras_vit.ViT_B16(image_size="large")
keras_vit.VisionTransformer(patch_sizes=16)
keras_vit.load_checkpoint(model)
"""


def test_mistakes_of_a_user_are_type_errors(tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api", reason="mypy is in the extra [dev]")
    file = tmp_path / "user.py"
    file.write_text(USER)
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    flags = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports", f"--cache-dir={tmp_path}"]
    output, problems, _ = api.run([*flags, str(file)])
    wrong = sorted(int(line) for line in re.findall(r"user\.py:(\d+): error", output))
    assert wrong == [6, 7, 8], output + problems


def test_the_package_says_that_it_has_types():
    assert (ROOT / "keras_vit" / "py.typed").is_file()
