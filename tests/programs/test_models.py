"""`keras-vit models`: published weights, their paths, and their verification."""

import json
import os
import pathlib

import pytest

from keras_vit import zoo
from keras_vit.checkpoints import save_checkpoint
from keras_vit.zoo import cache
from tests import programs, tiny
from tests.zoo.local_hub import local_hub  # noqa: F401 (a fixture)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(cache.MIRROR_VARIABLE, raising=False)


def facts(*arguments):
    code, output = programs.run("train.models", *arguments, "--json")
    return code, json.loads(output)


def test_files_of_a_model_are_listed_below_its_rows():
    code, output = programs.run("train.models", "ViT_S14", "ViT_B16:augreg")
    assert code == 0 and output.count("| ViT_S14 |") == 2 and "| ViT_B16 |" not in output
    assert output.index("| ViT_S14 |") < output.index("\nViT_S14:dinov2\n  URL") < output.index("\nViT_B16:augreg\n")
    assert "84 MiB" in output and output.count("not here") == 3
    code, rows = facts("ViT_S14")
    assert [row["name"] for row in rows] == ["ViT_S14:dinov2", "ViT_S14:dinov2-registers"]
    assert all(row["path"] is None and row["GFLOPs"] and row["url"] for row in rows)


def test_manually_placed_file_is_verified(tmp_path, monkeypatch):
    _, (row,) = facts("ViT_B16:augreg")
    place = pathlib.Path(row["by_hand"].removeprefix("the file to "))
    place.parent.mkdir(parents=True)
    place.touch()
    os.truncate(place, 25 * 2**20)
    code, (row,) = facts("ViT_B16:augreg", "--verify")
    assert code == 0 and row["path"] == str(place) == zoo.resolve("ViT_B16:augreg") and row["size"] == "25 MiB"
    assert row["verified"].startswith("unknown")
    pathlib.Path(f"{place}.sha256").write_text("0" * 64)
    code, output = programs.run("train.models", "ViT_B16:augreg", "--verify")
    assert code == 1 and "(damaged)" in output and "Apache-2.0" in output
    monkeypatch.setenv(cache.MIRROR_VARIABLE, str(tmp_path / "mirror"))
    _, (row,) = facts("ViT_B16:augreg")
    assert row["by_hand"].startswith(f"the file to {tmp_path}/mirror/vit_models/augreg/")


@pytest.mark.slow
def test_weights_of_a_hub_model_are_downloaded(local_hub, tmp_path):  # noqa: F811
    folder = save_checkpoint(tiny.model(num_layers=1), tmp_path / "model", format="huggingface")
    local_hub.repositories["a/b"] = {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
    code, (row,) = facts("hf:a/b", "--verify")
    assert code == 0 and row["path"] is None and row["url"] == "https://huggingface.co/a/b" and not local_hub.sent
    path = zoo.resolve("hf:a/b")
    code, (row,) = facts("hf:a/b", "--verify")
    assert code == 0 and row["path"] == path and row["verified"] == "undamaged"
    pathlib.Path(path, "model.safetensors").resolve().write_bytes(b"x")
    code, (row,) = facts("hf:a/b", "--verify")
    assert code == 1 and row["verified"] == "damaged"


def test_a_model_that_does_not_exist_is_reported():
    with pytest.raises(FileNotFoundError, match="'ViT_S17'. Did you mean 'ViT_S1"):
        programs.call("train.models", "ViT_S17")


@pytest.mark.parametrize("path", ["setup.py", "s3://bucket/model.npz"])
def test_a_path_is_refused(path):
    code, output = programs.run("train.models", path)
    assert code == 2 and f"'{path}' is a path" in output
