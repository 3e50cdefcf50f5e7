"""The format of an artifact, found by file names."""

import json

import pytest

from keras_vit.inference import formats, model_card, opening


def make(folder, *names):
    for name in names:
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
    return str(folder)


def test_the_largest_version_is_served(tmp_path):
    """By their numbers, not by their texts."""
    path = make(tmp_path, "9/", "10/", "2/", "latest/", "11", "-12/", "1.5/")
    assert formats.list_versions(path) == [2, 9, 10]
    assert formats.find(path) == (f"{path}/10", formats.SAVED_MODEL)
    assert formats.list_versions(f"{path}/nothing") == []


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a.tflite", "a.tflite.json", "notes.txt"], ("a.tflite", "tflite")),
        (["a.onnx"], ("a.onnx", "onnx")),
        (["a.xml", "a.bin", "a.xml.json"], ("a.xml", "openvino")),
        (["saved_model.pb", "1/"], ("", "saved_model")),
        (["1/", "a.tflite"], ("1", "saved_model")),
        (["notes.txt"], None),
        (["model.keras", "a.tflite"], None),  # a run may contain artifacts
        (["metrics.jsonl", "1/"], None),
    ],
)
def test_artifact_in_a_directory_is_found(names, found, tmp_path):
    path = make(tmp_path, *names)
    expected = found and (f"{path}/{found[0]}".rstrip("/"), formats.FORMATS[found[1]])
    assert formats.find(path) == expected


def test_several_artifacts_in_a_directory_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must have one artifact. Received: .*/a\.tflite, .*/b\.onnx\."):
        formats.find(make(tmp_path, "b.onnx", "a.tflite"))
    with pytest.raises(FileNotFoundError, match=r"c\.onnx"):
        formats.find(f"{tmp_path}/c.onnx")
    with pytest.raises(FileNotFoundError, match="nothing"):
        opening.open_artifact(f"{tmp_path}/nothing")
    with pytest.raises(ValueError, match=r"\.tflite, \.onnx, \.xml. Received: .*notes"):
        opening.open_artifact(make(tmp_path / "notes", "a.txt"))


@pytest.mark.parametrize(
    ("output", "name"), [("sigmoid", "probabilities"), ("mask", "mask"), ("tanh", None), (None, None)]
)
def test_output_kind_is_read_from_the_card_or_the_run(output, name, tmp_path):
    artifact, run = make(tmp_path, "a.tflite") + "/a.tflite", make(tmp_path / "run", "model.keras")
    assert opening.stated_output(artifact) is opening.stated_output(run) is None
    for path in (model_card.path_of(artifact), f"{run}/config.json"):
        with open(path, "w") as file:
            json.dump({"output": output}, file)
    found = [getattr(opening.stated_output(path), "output_name", None) for path in (artifact, run)]
    assert found == [name, name]


def test_missing_packages_are_reported_with_their_extra():
    with pytest.raises(ImportError, match=r"Writing a files needs missing_1, missing_2: pip install .*\[a\]"):
        formats.Format("a", ".a", "", "", packages=("missing_1", "json", "missing_2")).require_packages()
