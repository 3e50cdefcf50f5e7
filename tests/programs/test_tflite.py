"""`export.main` to TFLite on a finished run, and on files that are not part of a run."""

import json

import pytest

from keras_vit.inference.opening import open_artifact
from tests import tiny
from tests.programs import call


@pytest.mark.slow
def test_the_path_of_the_artifact_is_the_output(run, tmp_path, capsys):
    arguments = (f"--model={run}", f"--output={tmp_path / 'a.tflite'}", "--num_images=8")
    assert call("export.main", "--format=tflite", *arguments) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'a.tflite'}\n"
    assert call("export.main", "--format=tflite", *arguments, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["path"] == str(tmp_path / "a.tflite")
    assert answer["bytes"] == (tmp_path / "a.tflite").stat().st_size
    assert (answer["examples"], answer["top1_agreement"]) == (8, 1.0)


@pytest.mark.slow
def test_files_that_are_not_part_of_a_run_are_exported(run, tmp_path):
    model = tiny.model()
    model.save(tmp_path / "model.keras")
    (tmp_path / "labels.txt").write_text("\n".join(tiny.CLASS_NAMES), encoding="utf-8")
    for index, content in enumerate(tiny.images(3).contents):
        (tmp_path / f"{index}, pink.png").write_bytes(content)  # a comma in a name is no separator
    arguments = [f"--model={tmp_path / 'model.keras'}", f"--output={tmp_path / 'a.tflite'}"]
    arguments += [f"--labels={tmp_path / 'labels.txt'}"]
    with pytest.raises(ValueError, match="--images="):
        call("export.main", "--format=tflite", *arguments)
    arguments += [f"--images={tmp_path}/[01], pink.png", f"--images={tmp_path / '2, pink.png'}"]
    assert call("export.main", "--format=tflite", *arguments) == 0
    assert open_artifact(str(tmp_path / "a.tflite")).class_names == tiny.CLASS_NAMES
    verify = [argument for argument in arguments if not argument.startswith("--output")]
    assert call("export.verify", *verify, f"--artifact={tmp_path / 'a.tflite'}") == 0
