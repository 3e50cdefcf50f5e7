"""The card next to an artifact is complete, describes only this artifact, and is rejected if it does not match."""

import dataclasses
import importlib.util
import json
import os
import shutil

import numpy as np
import pytest

from keras_vit import outputs
from keras_vit.inference import model_card, sample_images
from keras_vit.inference.opening import open_artifact
from keras_vit.runs import run_directory
from tests import selection, tiny
from tests.programs import call


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A run, and a TFLite file of it that takes pixels, both in one directory."""
    directory = tmp_path_factory.mktemp("cards")
    tiny.write_digits_run(directory / "run")
    arguments = (f"--model={directory / 'run'}", "--num_images=8")
    assert (
        call(
            "export.main", "--format=tflite", *arguments, f"--output={directory / 'coll.tflite'}", "--input_dtype=uint8"
        )
        == 0
    )
    return directory


@pytest.fixture
def copied(exported, tmp_path):
    """A copy of the TFLite file and its card."""
    for name in ("coll.tflite", "coll.tflite.json"):
        shutil.copy(exported / name, tmp_path / name)
    return tmp_path / "coll.tflite"


@pytest.mark.slow
def test_two_formats_of_one_name_keep_their_own_cards(exported):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1), np.uint8)
    before = open_artifact(str(exported / "coll.tflite")).predict(pixels)
    arguments = (f"--model={exported / 'run'}", "--num_images=8", f"--output={exported / 'coll.xml'}")
    if importlib.util.find_spec("openvino") is None:
        pytest.skip("openvino is not installed: pip install 'keras-vision-transformers[openvino]'")
    assert call("export.main", "--format=openvino", *arguments) == 0
    artifact = open_artifact(str(exported / "coll.tflite"))
    assert artifact.card.input_dtype == "uint8"
    np.testing.assert_array_equal(artifact.predict(pixels), before)
    assert open_artifact(str(exported / "coll.xml")).card.input_dtype == "float32"


@pytest.mark.slow
def test_the_card_of_another_artifact_is_refused(copied):
    other = copied.with_name("other.tflite")
    other.write_bytes(copied.read_bytes() + b"x")
    model_card.write(str(other), open_artifact(str(copied)).card)
    shutil.copy(model_card.path_of(str(other)), model_card.path_of(str(copied)))
    with pytest.raises(ValueError, match=r"coll\.tflite.*Export the artifact again"):
        open_artifact(str(copied))


def test_a_changed_artifact_is_refused(copied):
    content = bytearray(copied.read_bytes())
    content[-1] ^= 1
    copied.write_bytes(content)
    with pytest.raises(ValueError, match=r"coll\.tflite.*Export the artifact again"):
        open_artifact(str(copied))


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"image_shape": [8, 8]},
        {"image_shape": [9, 9, 1]},  # another size than that of the file
        {"image_shape": [8, 8, 3]},
        {"class_names": list("012345678")},
        {"input_dtype": "float32"},
        {"batch_size": 2},
        {"output": "features"},
        {"class_names": [1] * 10},
        {"output": "tanh"},
        {"preprocess": None},
        {"files": {}},
        {"files": {".tflite": 5}},
    ],
    ids=str,
)
def test_edited_card_raises_one_clear_error(copied, change):
    path = model_card.path_of(str(copied))
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**content, **change}, file)
    with pytest.raises(ValueError, match=r"coll\.tflite.*Export the artifact again"):
        open_artifact(str(copied))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_damaged_card_raises_one_clear_error(copied, content):
    with open(model_card.path_of(str(copied)), "wb") as file:
        file.write(content)
    with pytest.raises(ValueError, match=r"coll\.tflite\.json"):
        open_artifact(str(copied))


def test_missing_card_raises_one_clear_error(copied):
    os.remove(model_card.path_of(str(copied)))
    with pytest.raises(FileNotFoundError, match=r"coll\.tflite\.json.*Export the artifact again"):
        open_artifact(str(copied))


def test_an_artifact_may_be_renamed_together_with_its_card(copied):
    renamed = str(copied.with_name("new.tflite"))
    os.rename(copied, renamed)
    os.rename(model_card.path_of(str(copied)), model_card.path_of(renamed))
    assert open_artifact(renamed).class_names == tuple(map(str, range(10)))


@pytest.mark.slow
@pytest.mark.parametrize("damage", selection.cases(["flip", "cut", "missing"], ["flip"], selection.EXHAUSTIVE))
def test_damaged_saved_model_is_refused(served, tmp_path, damage):
    shutil.copytree(served[1] / "1", tmp_path / "1")
    (data,) = (tmp_path / "1" / "variables").glob("*.data-*")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        data.unlink()
    else:
        data.write_bytes(content if damage == "flip" else content[:100])
    with pytest.raises((ValueError, FileNotFoundError), match=r"variables\.data"):
        open_artifact(str(tmp_path / "1"))


@pytest.fixture
def version(served, tmp_path):
    """A copy of a SavedModel."""
    shutil.copytree(served[1] / "1", tmp_path / "1")
    return tmp_path / "1"


@pytest.mark.parametrize("change", ["warm-up", "asset", "fingerprint"])
def test_every_file_of_a_saved_model_is_in_its_card(version, change):
    if change == "warm-up":
        (version / "assets.extra" / "tf_serving_warmup_requests").write_bytes(b"requests")
    elif change == "asset":
        (version / "assets").mkdir(exist_ok=True)
        (version / "assets" / "added").write_bytes(b"")
    else:
        (version / "fingerprint.pb").unlink()
    with pytest.raises((ValueError, FileNotFoundError), match="model card"):
        open_artifact(str(version))


def test_hidden_files_are_not_part_of_an_artifact(tmp_path):
    """Network file systems create them while a file is open."""
    names = ("saved_model.pb", ".nfs01", "variables/.tmp", "variables/a.index", "assets.extra/requests")
    for name in (*names, f"assets.extra/{model_card.FILE_NAME}"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    expected = ["assets.extra/requests", "saved_model.pb", "variables/a.index"]
    assert model_card.parts_of(str(tmp_path)) == {name: str(tmp_path / name) for name in expected}
    assert model_card.size_of(str(tmp_path)) == 15


def test_a_written_card_has_no_absolute_paths(tmp_path):
    path = str(tmp_path / "a.tflite")
    with open(path, "wb") as file:
        file.write(b"model")
    source = "folder:/home/me/flowers"
    card = tiny.card(data={"name": source}, recipe={"data": {"source": source, "splits": ["/mnt/a/b.csv"], "seed": 1}})
    others = {"arguments": {"head": "/a/b.json"}, "metrics": {"file": "/c/d"}, "versions": {"tensorflow": "/e/f"}}
    written = model_card.write(path, dataclasses.replace(card, **others))
    with open(model_card.path_of(path), encoding="utf-8") as file:
        content = json.load(file)
    assert [content[name] for name in others] == [{"head": ".../b.json"}, {"file": ".../d"}, {"tensorflow": ".../f"}]
    assert content["recipe"]["data"] == {"source": "folder:.../flowers", "splits": [".../b.csv"], "seed": 1}
    assert content["data"] == {"name": "folder:.../flowers"}
    assert content["preprocess"] == tiny.PREPROCESS
    assert sample_images.source_of(written) is None  # another folder of that name is not mistaken for it
    assert sample_images.source_of(dataclasses.replace(written, recipe={"data": {"source": "digits"}})) == "digits"


def test_truncated_line_of_metrics_is_ignored(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "eval_loss": 0.5}\n{"step": 2}\n{"step": 3, "eval_lo')
    assert run_directory.last_evaluation(str(tmp_path)) == {"step": 1, "eval_loss": 0.5}
    steps = {step: run_directory.last_evaluation(str(tmp_path), step) for step in (1, 2)}
    assert steps == {1: {"step": 1, "eval_loss": 0.5}, 2: {}}


def test_a_card_with_too_few_names_is_refused():
    with pytest.raises(ValueError, match="a name for each of the 3 outputs. Received: 2 names"):
        outputs.of("softmax").parts(np.array([0.2, 0.1, 0.7]), ("ape", "bee"))
