"""Images that cannot be read: named with exit code 66 or left out, as the recipe or a flag says. Nothing hangs."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from keras_vit import recipe as recipes
from keras_vit.data import UnreadableImageError
from keras_vit.tuning import train
from tests import programs, tiny
from tests.evaluators import folders

ROOT = pathlib.Path(__file__).resolve().parents[2]
KNN = "--evaluators=knn(neighbors=1)"


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A run that stops at damaged images, with one in its test split: its directory and the file."""
    directory = tmp_path_factory.mktemp("strict $x$")
    (broken,) = folders.write_images(directory / "images")
    folders.write_run(directory / "run", directory / "images")
    return directory / "run", broken


@pytest.fixture(scope="module")
def lenient(strict):
    """The same with a recipe that skips them."""
    directory = strict[0].parent
    folders.write_run(directory / "lenient", directory / "images", on_bad_image="skip")
    return directory / "lenient"


def program(name, *arguments):
    """Run a program in a separate process, which must end."""
    command = [sys.executable, "-m", name, *map(str, arguments)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_evaluate_names_the_image_and_ends(strict):
    run, broken = strict
    done = program("train.evaluate", f"--model={run}", KNN)
    assert done.returncode == UnreadableImageError.exit_code == 66
    assert broken.name in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


@pytest.mark.slow
def test_evaluate_names_the_image_without_evaluators(strict):
    run, broken = strict
    code, output = programs.run("train.evaluate", f"--model={run}")
    assert code == 66 and broken.name in output and "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), (KNN,)])
def test_the_recipe_states_that_it_is_left_out(arguments, lenient, capsys):
    assert programs.call("train.evaluate", f"--model={lenient}", "--json", *arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert "k1" in found["knn"] if arguments else found["examples"] == 11


@pytest.mark.slow
def test_a_flag_changes_it(strict, lenient, capsys):
    run, broken = strict
    assert programs.call("train.evaluate", f"--model={run}", "--json", "--on_bad_image=skip") == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 11
    with pytest.raises(UnreadableImageError, match="image 1.png"):
        programs.call("train.evaluate", f"--model={lenient}", "--on_bad_image=error", KNN)


@pytest.mark.slow
def test_evaluators_during_training_leave_it_out(tmp_path, monkeypatch):
    folders.write_images(tmp_path / "images", damaged=("train", "test"))
    recipe = recipes.Recipe(
        total_steps=1,
        data=recipes.Data(
            f"folder:{tmp_path / 'images'}",
            pp_train=folders.PP,
            pp_eval=folders.PP,
            batch_size=4,
            on_bad_image="skip",
        ),
        eval_every=1,
        evaluators=("knn(neighbors=1, train_split='train', split='test')",),
        model=recipes.Model("ViT-Ti/16", image_size=8, arguments=dict(tiny.ARGUMENTS)),
    )
    main = programs.load("train.main")
    monkeypatch.setattr(main.program, "recipe_from_flags", lambda *_: recipe)
    monkeypatch.setattr(train, "draw_figure", lambda *_: None)
    monkeypatch.setattr(programs, "load", lambda name: main)
    assert not programs.call("train.main", f"--workdir={tmp_path / 'run'}")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [0.0 <= line["knn/k1"] <= 1.0 for line in lines if "evaluator" in line] == [True]
    assert {line["examples"] for line in lines if "eval_accuracy" in line} == {11}


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False])
def test_the_page(given, strict, lenient, tmp_path):
    pytest.importorskip("matplotlib", reason="the page needs matplotlib")
    run, broken = strict
    images = [f"--images={broken.parent}/*.png"] if given else []
    output = f"--output={tmp_path / 'page'}"
    with pytest.raises(UnreadableImageError, match="image 1.png"):
        programs.call("train.visualize", f"--model={run}", output, *images)
    assert programs.call("train.visualize", f"--model={lenient}", output, *images) == 0
    html = (tmp_path / "page" / "report.html").read_text()
    names = re.findall(r'<span class="name" title="(.*?)">', html)
    assert names.count("image 2.png") and names.count("image 1.png") == (0 if given else 1)  # that of the other class


@pytest.mark.slow
def test_the_page_without_matplotlib_is_one_line(strict, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"] + ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    code, output = programs.run("train.visualize", f"--model={strict[0]}", f"--output={tmp_path}")
    assert code
    assert "pip install 'keras-vision-transformers[plots]'" in output
    assert "Traceback" not in output
