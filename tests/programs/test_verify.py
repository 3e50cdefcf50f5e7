"""`export.verify`: artifacts that agree with their model and that do not."""

import json
import shutil

import pytest

from keras_vit.training.errors import UnreadableInput
from tests import tiny
from tests.programs import call


@pytest.mark.slow
def test_verify_agrees_and_differs(run, saved_model, tflite_file, tmp_path, capsys):
    for path in (saved_model, tflite_file):
        assert call("export.verify", f"--model={run}", f"--artifact={path}", "--num_images=40") == 0
        assert capsys.readouterr().out.endswith("agrees\n")
    tiny.write_digits_run(tmp_path / "other", seed=1)
    arguments = (f"--model={tmp_path / 'other'}", f"--artifact={tflite_file}", "--num_images=40")
    assert call("export.verify", "--json", *arguments) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is False
    assert report["examples"] == 40
    assert report["top1_agreement"] < 1
    lenient = ("--max_difference=1", "--min_agreement=0", "--max_accuracy_drop=1")
    assert call("export.verify", *arguments, *lenient) == 0


@pytest.mark.parametrize(
    ("recipe", "flag", "is_read"),
    [("error", None, False), ("skip", None, True), ("error", "skip", True), ("skip", "error", False)],
)
@pytest.mark.slow
def test_unreadable_images_are_treated_as_in_the_recipe(
    run, digits, tflite_file, tmp_path, recipe, flag, is_read, capsys
):
    shutil.copytree(run, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["recipe"]["data"]["on_bad_image"] = recipe
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    tiny.digit_files(tmp_path, digits.source, 2)
    (tmp_path / "bad.png").write_bytes(b"not an image")
    arguments = [f"--model={tmp_path / 'run'}", f"--artifact={tflite_file}", f"--images={tmp_path}/*.png", "--json"]
    arguments += [f"--on_bad_image={flag}"] if flag else []
    if is_read:
        assert call("export.verify", *arguments) == 0
        assert json.loads(capsys.readouterr().out)["examples"] == 2
    else:
        with pytest.raises(UnreadableInput, match=r"bad\.png") as caught:
            call("export.verify", *arguments)
        assert caught.value.exit_code == 66
