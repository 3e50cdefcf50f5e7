"""The Python of docs/inspection.md runs."""

import pathlib
import re

import pytest

import keras_vit

DOCUMENT = pathlib.Path(__file__).parent.parent.parent / "docs" / "inspection.md"


def test_python_runs(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the page draws figures")
    text = DOCUMENT.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    narrow = {"hidden_size": 24, "num_layers": 2, "mlp_dim": 16}
    monkeypatch.setattr(
        keras_vit, "ViT_B16", lambda **a: keras_vit.create_model("ViT-B/16", **narrow, **a), raising=False
    )
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, DOCUMENT.name, "exec"), names)
    assert names["maps"]["encoderblock_0"].shape == (4, 12, 197, 197)
    assert {name: names[name].shape for name in ("rollout", "where", "why")} == {
        "rollout": (4, 197, 197),
        "where": (4, 14, 14),
        "why": (4, 14, 14),
    }
    assert names["overlaid"].shape == (224, 224, 3)
    assert (tmp_path / "layers.svg").exists()
