"""Images that cannot be read: named with exit code 66 or left out, as the recipe or a flag states. No program hangs."""

import json
import os
import sys

import pytest

from keras_vit.data import UnreadableImageError
from tests import forked, programs
from tests.evaluators import folders

KNN = "--evaluators=knn(neighbors=1)"


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A run that stops at damaged images, with one in its test split: its directory and the file."""
    directory = tmp_path_factory.mktemp("strict $x$")
    (broken,) = folders.write_images(directory / "images")
    folders.write_run(directory / "run", directory / "images")
    return directory / "run", broken


@pytest.mark.slow
def test_evaluate_names_the_unreadable_image_and_exits(strict):
    run, broken = strict
    process = forked.Program(forked.ROOT, "train.evaluate", [f"--model={run}", KNN], os.environ)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == UnreadableImageError.exit_code == 66
    assert broken.name in output and "Traceback" not in output


@pytest.mark.slow
def test_on_bad_image_flag_overrides_the_recipe(strict, tmp_path, capsys):
    run, broken = strict
    folders.write_run(tmp_path / "lenient", run.parent / "images", on_bad_image="skip")
    for arguments in ((f"--model={tmp_path / 'lenient'}",), (f"--model={run}", "--on_bad_image=skip")):
        assert programs.call("train.evaluate", *arguments, "--json") == 0
        assert json.loads(capsys.readouterr().out)["examples"] == 11
    with pytest.raises(UnreadableImageError, match="image 1.png"):
        programs.call("train.evaluate", f"--model={tmp_path / 'lenient'}", "--on_bad_image=error")


@pytest.mark.slow
def test_report_without_matplotlib_prints_one_line(strict, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"] + ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    code, output = programs.run("train.visualize", f"--model={strict[0]}", f"--output={tmp_path}")
    assert code and "pip install 'keras-vision-transformers[plots]'" in output and "Traceback" not in output
