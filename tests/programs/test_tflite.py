"""`export.main` to TFLite on a finished run, and on files that are not part of a run."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.inference.opening import open_artifact
from tests import golden_data, tiny
from tests.programs import call


@pytest.mark.slow
def test_pixels_in(run, digits, tmp_path):
    path = tmp_path / "pixels.tflite"
    assert (
        call("export.main", "--format=tflite", f"--model={run}", f"--output={path}", "--input=uint8", "--num_images=8")
        == 0
    )
    artifact = open_artifact(str(path))
    answer = artifact.predict(digits.source.images[:4])
    np.testing.assert_allclose(answer, tf.nn.softmax(digits.logits[:4]), atol=1e-5)


@pytest.mark.slow
def test_without_the_data_set_pictures_must_be_given(tmp_path):
    tiny.write_digits_run(tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["recipe"]["data"]["source"] = "folder:/nowhere"
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    arguments = (f"--model={tmp_path / 'run'}", f"--output={tmp_path / 'a.tflite'}")
    with pytest.raises(ValueError, match="--images="):
        call("export.main", "--format=tflite", *arguments)
    images = golden_data.path("images/gray.png").parent
    assert call("export.main", "--format=tflite", *arguments, f"--images={images}/*") == 0


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
