"""The list of runs: what a folder holds, what each run is doing, and the command that resumes it."""

import datetime
import json
import os
import shlex

import pytest

from keras_vit import recipe as recipes
from keras_vit.runs import Run, recipe_file
from keras_vit.util import locks
from tests import programs
from tests.experiments.test_comparison import write_run
from train import experiments


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path / "a", 0.5)
    write_run(tmp_path / "b c", 0.25, rate=3e-4, finished=False)
    write_run(tmp_path / "sweep" / "runs" / "000", 0.75)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.json").write_text('{"model_type": "vit"}')  # of another project
    return tmp_path


def test_folder_lists_the_runs_and_sweeps_in_it(folder):
    found = {run.path.removeprefix(f"{folder}/"): run.state for run in experiments.read_runs([str(folder)])}
    assert found == {"a": "finished", "b c": "step 10 of 20", "sweep/runs/000": "finished"}
    assert len(experiments.compare([str(folder)]).rows) == 3


def test_folders_inside_a_run_are_not_runs(folder):
    """Such as a checkpoint that was written into it; a folder of runs contains both."""
    write_run(folder / "a" / "copies" / "b", 0.1)
    assert [run.path for run in experiments.read_runs([str(folder / "a")])] == [str(folder / "a")]
    assert len(experiments.read_runs([str(folder)])) == 4


def test_runs_are_searched_three_folders_deep(tmp_path):
    for folder in ("b/c/d", "a/c/d/e"):
        write_run(tmp_path / folder)
    assert [run.path for run in experiments.read_runs([str(tmp_path)])] == [f"{tmp_path}/b/c/d"]


def run_of(path, lines, **fields):
    """The run in a directory, into which its record is written."""
    config = {"recipe": recipes.to_dict(recipes.Recipe(**fields)), "data": {"class_names": []}, "preprocess": ""}
    (path / "config.json").write_text(json.dumps(config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Run(str(path))


def test_steps_are_counted_in_thousands(tmp_path):
    run = run_of(tmp_path, [{"step": 1_500}, {"step": 1_000}], total_steps=20_000)
    assert run.state == "step 1,500 of 20,000"


@pytest.mark.parametrize("checkpoint", ["ckpt-22.json", "ckpt_22/manifest.json"])
def test_step_of_a_run_is_the_step_of_its_newest_checkpoint(checkpoint, tmp_path):
    for name in ("ckpt-30.data-00000-of-00001", checkpoint):
        (tmp_path / "checkpoints" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkpoints" / name).touch()
    assert run_of(tmp_path, [{"step": 20}], total_steps=30).state == "step 22 of 30"
    assert run_of(tmp_path, [{"step": 20}], total_steps=22).state == "step 22 of 22, without a model"


def test_a_run_whose_lock_is_taken_is_running(folder):
    with locks.locked(str(folder / "b c")):
        (run,) = experiments.read_runs([str(folder / "b c")])
        assert run.state == "running, step 10 of 20"
    assert run.state == "step 10 of 20"


def test_runs_command_prints_the_table(folder, capsys):
    assert programs.call("train.runs", str(folder)) == 0
    text = capsys.readouterr().out
    assert f"| {folder}/a | finished | eval_accuracy | 50.00% | 60.00% |" in text
    assert text.count("keras-vit train") == 1  # two are finished
    assert programs.call("train.runs", f"{folder}/a", f"{folder}/sweep", "--nocompare") == 0
    assert capsys.readouterr().out.count("| finished |") == 2
    assert programs.call("train.runs", "--json", str(folder)) == 0
    runs = json.loads(capsys.readouterr().out)
    assert [(run["last"], run["best"]) for run in runs] == [(0.5, 0.6), (0.35, 0.35), (0.75, 0.85)]
    command = shlex.split(runs[1]["resume"])
    recipe, rest, fit = recipe_file.load(command[2].removeprefix("--config="))
    assert command[3] == f"--workdir={folder}/b c" and not rest
    assert fit(recipe, lambda recipe: recipe) == recipes.Recipe(
        total_steps=20, evaluators=("knn",), optim=recipes.Optim(learning_rate=3e-4)
    )


def test_best_value_of_an_error_metric_is_the_smallest(tmp_path):
    lines = [{"step": step, "eval_standardized_mae": value} for step, value in ((1, 2.0), (2, 1.5), (3, 1.75))]
    run = run_of(tmp_path, lines, task="regression")
    found = programs.load("train.runs").describe(run)
    assert (found["score"], found["last"], found["best"]) == ("eval_standardized_mae", "1.75", "1.5")


def test_runs_are_dated_by_their_metrics_file(tmp_path):
    run, shown = run_of(tmp_path, []), []
    times = {"config.json": 1_000_000_000, "metrics.jsonl": 1_000_090_000}
    for name, time in times.items():
        os.utime(tmp_path / name, (time, time))
    for _ in times:
        shown.append(programs.load("train.runs").describe(run)["updated"])
        (tmp_path / "metrics.jsonl").unlink(missing_ok=True)
    expected = [datetime.datetime.fromtimestamp(time) for time in (1_000_090_000, 1_000_000_000)]
    assert shown == [f"{time:%Y-%m-%d %H:%M}" for time in expected]


def test_default_folder_is_runs(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no run in 'runs'"):
        programs.call("train.runs")
    assert not caplog.messages
    write_run(tmp_path / "runs" / "a")
    assert programs.call("train.runs") == 0
