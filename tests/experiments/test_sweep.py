"""Sweeps: which runs start, what is kept, and the table. The training program is replaced, but for one test."""

import json
import os
import pathlib
import signal
import sys
import threading
import time

import pytest

from keras_vit import experiments, recipe
from keras_vit.experiments.table import Row, Table
from keras_vit.program import recipe_file
from keras_vit.training import errors
from keras_vit.training.run_directory import read_metrics
from tests import programs, tiny

FAKE = [sys.executable, str(pathlib.Path(__file__).with_name("fake_run.py"))]
RATES = {"optim.learning_rate": [0.1, 0.3], "seed": [0, 1]}


def sweep(workdir, grid=RATES, **options):
    base = options.pop("base", recipe.Recipe())
    return experiments.sweep(base, grid, str(workdir), command=FAKE, **options)


def starts(workdir):
    """How often each run was started."""
    return {path.parent.name: len(path.read_text().split()) for path in workdir.glob("runs/*/starts")}


def test_every_combination_is_run_once(tmp_path):
    table = sweep(tmp_path)
    names = {f"learning_rate={rate},seed={seed}" for rate in (0.1, 0.3) for seed in (0, 1)}
    assert starts(tmp_path) == dict.fromkeys(names, 1)
    assert sweep(tmp_path) == table
    assert starts(tmp_path) == dict.fromkeys(names, 1)


def test_the_table(tmp_path):
    table = sweep(tmp_path)
    assert table.best.settings == {"optim.learning_rate": 0.3}
    assert table.best.mean("eval_accuracy") == pytest.approx(0.305)
    assert table.best.std("eval_accuracy") == pytest.approx(0.01 / 2**0.5)  # of the sample: two values, 0.01 apart
    assert not table.failed
    text = (tmp_path / "table.md").read_text()
    assert "| **0.3** | **2** | **30.50 % ± 0.71 %** | **1 ± 0** |" in text
    assert table.rows[0].metrics["eval_accuracy"] == [0.1, 0.11]


def test_the_best_of_a_loss_is_the_lowest():
    rows = [Row({"rate": rate}, 1, {"eval_loss": [value], "x/ece": [-value]}) for rate, value in ((1, 0.5), (2, 0.25))]
    assert [Table(rows, metric).best.settings["rate"] for metric in ("eval_loss", "x/ece")] == [2, 1]


def test_a_task_is_swept_as_text():
    base = recipe.Recipe(model=recipe.Model(image_size=32, arguments={"patch_size": 4}))
    points = experiments.expand(base, experiments.parse_grid(["task=classification,mae(mask_ratio=0.5)"], base))
    assert [point.settings for point in points] == [{"task": "classification"}, {"task": "mae(mask_ratio=0.5)"}]
    assert points[1].recipe.task == recipe.MAE(mask_ratio=0.5)


def test_the_directory_says_how_each_run_was_made(tmp_path):
    base = recipe.Recipe(total_steps=3, data=recipe.Data(source="folder:a 'b'\\c"))
    sweep(tmp_path, base=base, flags=["--distribute=one_device"])
    run = json.loads((tmp_path / "sweep.json").read_text())["runs"]["learning_rate=0.3,seed=1"]
    assert run["settings"] == {"optim.learning_rate": 0.3, "seed": 1}
    assert "--distribute=one_device" in run["command"] and run["exit_code"] == 0
    written, *_ = recipe_file.load(str(tmp_path / "runs" / "learning_rate=0.3,seed=1" / "recipe.py"))
    assert written == recipe.replace(base, {"optim.learning_rate": 0.3, "seed": 1})


def test_a_larger_grid_adds_runs(tmp_path):
    sweep(tmp_path)
    table = sweep(tmp_path, {"optim.learning_rate": [0.2], "seed": [0, 1, 2]})
    assert set(starts(tmp_path).values()) == {1}
    assert [(row.settings["optim.learning_rate"], row.runs) for row in table.rows] == [(0.1, 2), (0.3, 2), (0.2, 3)]


def test_another_field_adds_a_column(tmp_path):
    sweep(tmp_path, {"seed": [0]})
    table = sweep(tmp_path, {"optim.weight_decay": [0.5]})
    assert [row.settings for row in table.rows] == [{"optim.weight_decay": 0.0}, {"optim.weight_decay": 0.5}]


def test_another_recipe_is_refused(tmp_path):
    sweep(tmp_path)
    with pytest.raises(ValueError, match="total_steps"):
        sweep(tmp_path, base=recipe.Recipe(total_steps=9))
    base = recipe.Recipe(log_every=1, seed=5)  # neither decides about the results: the seed is swept
    sweep(tmp_path, base=base)
    assert set(starts(tmp_path).values()) == {1}


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_failed_run_does_not_stop_the_others(tmp_path, parallel):
    grid = {"optim.learning_rate": [1.0, 0.1]}
    table = sweep(tmp_path, grid, parallel=parallel)
    (reason,) = table.failed.values()
    assert "The loss is nan in step 1." in reason and "E1122" not in reason
    assert "learning_rate=1.0 failed: exit code 1" in (tmp_path / "table.md").read_text()
    assert table.best.settings == {"optim.learning_rate": 0.1}
    (tmp_path / "runs" / "learning_rate=1.0" / "repaired").touch()
    assert not sweep(tmp_path, grid).failed
    assert starts(tmp_path) == {"learning_rate=1.0": 2, "learning_rate=0.1": 1}


def test_a_stop_asks_all_runs_to_save_and_resumes(tmp_path):
    grid = {"optim.learning_rate": [0.5], "seed": [0, 1, 2]}

    def stop_once_running():
        deadline = time.monotonic() + 50
        while len(list(tmp_path.glob("runs/*/ready"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_once_running)
    thread.start()
    with pytest.raises(errors.Interrupted):
        sweep(tmp_path, grid, parallel=2)
    thread.join()
    states = experiments.pending(recipe.Recipe(), grid, str(tmp_path))
    assert list(states.values()) == ["started", "started", "waiting"]
    (tmp_path / "runs" / "learning_rate=0.5,seed=2" / "stopped").touch()
    assert [row.runs for row in sweep(tmp_path, grid).rows] == [3]
    assert list(starts(tmp_path).values()).count(2) == 2


class TestProgram:
    def test_wrong_usage(self, tmp_path):
        for arguments, named in [
            (["--config=digits", "--grid=seed=1"], "--workdir"),
            (["--config=digits", f"--workdir={tmp_path}"], "--grid"),
            (["--config=digits", f"--workdir={tmp_path}", "--grid=seed=1", "--seeds=2"], "--seeds"),
        ]:
            with pytest.raises(ValueError, match=named):
                programs.call("train.sweep", *arguments)

    def test_list_runs_nothing(self, tmp_path, capsys):
        arguments = ["--config=digits", f"--workdir={tmp_path}", "--grid=optim.ema=0,0.9", "--seeds=2", "--list"]
        assert programs.call("train.sweep", *arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["waiting", "ema=0.0,seed=0"] and len(lines) == 4
        assert not list(tmp_path.iterdir())

    @pytest.mark.slow
    def test_digits(self, tmp_path, capsys):
        fields = {"total_steps": 3, "log_every": 1, "data.eval_split": "test[:40]", "data.batch_size": 8}
        fields |= {f"model.arguments.{name}": value for name, value in tiny.ARGUMENTS.items()}
        overrides = [f"{field}={value}" for field, value in fields.items()]
        arguments = ["--config=digits", "--grid=optim.learning_rate=1e-3", f"--workdir={tmp_path}"]
        arguments += ["--", "--distribute=one_device"]
        assert programs.call("train.sweep", *arguments, override=overrides) == 0
        assert "| **0.001** | **1** |" in capsys.readouterr().out
        run = tmp_path / "runs" / "learning_rate=0.001"
        assert (run / "model.keras").exists()
        assert [line["step"] for line in read_metrics(str(run))] == [1, 2, 3, 3]


@pytest.mark.parametrize("metric", ["eval_loss", "eval_accuracy"])
def test_a_row_that_is_not_a_number_is_never_the_best(metric):
    values = (1, float("nan")), (2, 0.5), (3, float("nan"))
    rows = [Row({"rate": rate}, 1, {metric: [value]}) for rate, value in values]
    for order in (rows, rows[::-1]):
        assert Table(order, metric).best.settings == {"rate": 2}
    assert Table(rows[:1], metric).best is None
