"""Comparison of runs: tables, page and program, on run directories without models."""

import io
import json
import pathlib
import re

import numpy as np
import pytest
from PIL import Image

from keras_vit import experiments, recipe
from keras_vit.training import run_directory
from tests import programs
from tests.inspection import browser

DATA = {"name": "digits", "class_names": ["0", "1"], "num_classes": 2, "num_train": 9, "num_eval": 4}
HOSTILE = "</script><script>throw 'x'</script> & \"'"


def write_run(path, accuracy=0.5, rate=1e-3, seed=0, data=(), finished=True, **fields):
    path.mkdir(parents=True)
    given = recipe.replace(recipe.Recipe(total_steps=20, **fields), {"optim.learning_rate": rate, "seed": seed})
    run_directory.write_config(str(path), given, {**DATA, "multi_label": False, **dict(data)})
    lines = [
        {"step": 10, "loss": 2.0, "accuracy": 0.2, "learning_rate": rate, "images_per_second": 100.0},
        {"step": 10, "split": "test", "eval_accuracy": accuracy + 0.1, "eval_loss": 1.5, "examples": 4},
        {"step": 20, "loss": 1.0, "accuracy": 0.4, "learning_rate": rate / 2, "images_per_second": 300.0},
        {"step": 20, "split": "test", "eval_accuracy": accuracy, "eval_loss": 1.0, "examples": 4},
        {"step": 20, "knn/k1": 0.25},
    ]
    kept = lines if finished else lines[:2]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    if finished:
        (path / "model.keras").touch()
    return str(path)


@pytest.fixture
def paths(tmp_path):
    return [write_run(tmp_path / "a", 0.5), write_run(tmp_path / "b", 0.75, rate=3e-4, data={"num_train": 8})]


def test_differences(paths):
    found = experiments.compare(paths).differences
    assert found == {"optim.learning_rate": [1e-3, 3e-4], "data set.num_train": [9, 8]}


def test_versions_are_compared(paths):
    path = f"{paths[0]}/config.json"
    with open(path) as file:
        config = json.load(file)
    config["versions"]["keras"] = "0.1"
    with open(path, "w") as file:
        json.dump(config, file)
    assert experiments.compare(paths).differences["version of keras"][0] == "0.1"


def test_runs_of_other_versions_are_one_group(tmp_path):
    """They differ only in the seed; the version stands in the table of differences."""
    paths = [write_run(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    config = tmp_path / "b" / "config.json"
    content = json.loads(config.read_text())
    content["versions"]["keras"] = "0.1"
    config.write_text(json.dumps(content))
    (group,) = experiments.compare(paths).groups
    assert [run.name for run in group.runs] == ["a", "b"]
    assert group.name.endswith("(2 seeds)") and "keras" not in group.name


def test_the_best_loss_is_the_lowest(tmp_path):
    pytest.importorskip("matplotlib")
    paths = [write_run(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    metrics = tmp_path / "b" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"eval_loss": 1.0', '"eval_loss": 0.25'))
    page = pathlib.Path(experiments.write_comparison(experiments.compare(paths), str(tmp_path / "page"))).read_text()
    assert "<b>0.25</b>" in page and "<b>1</b>" not in page


def test_results(paths):
    header, rows = experiments.compare(paths).results()
    found = dict(zip(header, rows[1], strict=True))
    assert found == {
        "run": "b",
        "steps:": "20",
        "eval_accuracy:": "75.00 %",
        "eval_loss:": "1",
        "knn/k1:": "25.00 %",
        "best eval_accuracy:": "85.00 % (step 10)",
        "training loss:": "1",
        "images per second:": "200",
    }


def test_a_run_that_is_not_finished(tmp_path, paths):
    other = write_run(tmp_path / "c", finished=False)
    assert experiments.compare([*paths, other]).results()[1][2][1] == "10 of 20"


def test_runs_of_a_sweep_and_seeds(tmp_path):
    names = {f"{rate},{seed}": (rate, seed) for rate in (1e-3, 1e-2) for seed in (0, 1)}
    for name, (rate, seed) in names.items():
        write_run(tmp_path / "sweep" / "runs" / name, rate * 10 + seed / 100, rate=rate, seed=seed)
    record = {"recipe": {}, "runs": dict.fromkeys([*names, "waiting"], {})}
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(record))
    found = experiments.compare([str(tmp_path / "sweep")])
    assert [run.name for run in found.runs] == list(names)
    assert [group.name for group in found.groups] == ["learning_rate=0.001 (2 seeds)", "learning_rate=0.01 (2 seeds)"]
    assert len(experiments.compare([str(tmp_path / "sweep"), str(tmp_path / "sweep" / "runs" / "0.001,0")]).runs) == 4


def test_names_tell_runs_apart(tmp_path):
    paths = [write_run(tmp_path / group / "run") for group in ("one", "two")]
    assert [run.name for run in experiments.compare(paths).runs] == ["one/run", "two/run"]


def test_many_runs_have_a_row_each(tmp_path):
    paths = [write_run(tmp_path / str(seed), seed=seed) for seed in range(7)]
    header, rows = experiments.compare(paths).difference_table()
    assert header == ["run", "seed"] and rows[6] == ["6", "6"]


@pytest.mark.parametrize(
    ("damage", "error"), [("config.json", ValueError), ("sweep.json", ValueError), ("none", FileNotFoundError)]
)
def test_a_directory_that_is_not_a_run_is_skipped(tmp_path, paths, damage, error, caplog):
    """As in `keras-vit compare runs/*`, where a run failed before it began."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / damage).write_text("{")
    (tmp_path / "table.md").touch()
    others = [str(tmp_path / "table.md"), str(tmp_path / "x")]
    found = experiments.compare([others[0], *paths, others[1]])
    assert [run.path for run in found.runs] == paths
    assert len(caplog.messages) == 2
    for path, message in zip(others, caplog.messages, strict=True):
        assert message.startswith(f"{path} is skipped: ") and "\n" not in message
    assert [run.path for run in experiments.compare([paths[0], *others]).runs] == paths[:1]
    with pytest.raises(error, match=r"(config|sweep)\.json"):
        experiments.compare(others[1:])


def test_one_run_is_not_compared(paths):
    with pytest.raises(ValueError, match="at least two"):
        experiments.compare(paths[:1])


class TestPage:
    @pytest.fixture(autouse=True)
    def matplotlib(self):
        pytest.importorskip("matplotlib", reason="the page needs matplotlib")

    def test_program(self, tmp_path, paths, capsys):
        assert programs.call("train.compare", *paths, f"--output={tmp_path / 'out'}") == 0
        text = capsys.readouterr().out
        assert "| optim.learning_rate | 0.001 | 0.0003 |" in text
        assert text == (tmp_path / "out" / "comparison.md").read_text()
        assert programs.call("train.compare", *paths, "--json") == 0
        assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "out" / "comparison.json").read_text())

    def test_the_page_holds_everything(self, tmp_path, paths):
        other = write_run(tmp_path / "c", model=recipe.Model(checkpoint=f"{tmp_path}/weights.npz"))
        path = experiments.write_comparison(experiments.compare([*paths, other]), str(tmp_path / "out"))
        html = pathlib.Path(path).read_text(encoding="utf-8")
        for text in ("Comparison of 3 runs", "best accuracy: b", "<b>75.00 %</b>", "0.0003", "weights.npz"):
            assert text in html
        titles = [
            "Training loss",
            "Evaluation loss",
            "Training accuracy",
            "Evaluation accuracy",
            "Learning rate",
            "knn/k1",
        ]
        assert re.findall('<img alt="([^"]+)"', html) == titles
        assert str(tmp_path) not in html
        assert not re.search(r'src="(?!data:)', html)

    @pytest.mark.slow
    def test_in_a_browser(self, tmp_path):
        if browser.find() is None:
            pytest.skip("no browser: install Debian's chromium to check the page in one")
        paths = [
            write_run(tmp_path / f"{HOSTILE.replace('/', ' ')} {'x' * 150} {i}", rate=10.0**-i) for i in range(2, 5)
        ]
        path = tmp_path / "out" / "comparison.html"
        assert experiments.write_comparison(experiments.compare(paths), str(tmp_path / "out")) == str(path)
        with browser.Browser(tmp_path / "profile") as opened:
            opened.open(path, "true")
            for scheme in ("light", "dark"):
                for width in (1240, 390):
                    opened.look(scheme, width)
                    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
                    assert opened.evaluate(wide), (scheme, width)
                    pixels = Image.open(io.BytesIO(opened.screenshot(".drawings img"))).convert("L")
                    assert (np.median(pixels) > 225) == (scheme == "light")
            assert opened.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
            assert opened.problems == []
            assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []


def test_the_speed_is_the_median(tmp_path, paths):
    """A slow interval, such as that of an evaluation, does not count."""
    with open(f"{paths[0]}/metrics.jsonl", "a") as file:
        for step, speed in ((21, 310.0), (22, 2.0), (23, 305.0)):
            file.write(json.dumps({"step": step, "loss": 1.0, "images_per_second": speed}) + "\n")
    header, rows = experiments.compare(paths).results()
    assert dict(zip(header, rows[0], strict=True))["images per second:"] == "300"  # of 2, 100, 300, 305 and 310
