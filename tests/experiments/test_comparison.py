"""Comparison of runs: tables and program, on run directories without models."""

import json

import pytest

from keras_vit import recipe
from keras_vit.runs import run_directory
from keras_vit.util.metrics import Metric
from tests import programs
from train import experiments
from train.experiments.table import Row, Table

DATA = {"name": "digits", "class_names": ["0", "1"], "num_classes": 2, "num_train": 9, "num_eval": 4}


def write_run(path, accuracy=0.5, rate=1e-3, seed=0, data=(), finished=True, **fields):
    path.mkdir(parents=True)
    given = recipe.Recipe(total_steps=20, evaluators=("knn",), **fields)
    given = recipe.replace(given, {"optim.learning_rate": rate, "seed": seed})
    run_directory.write_config(str(path), given, {**DATA, "label_kind": "class", **dict(data)})
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


def settings(table):
    return [row.settings for row in table.rows]


def names(table):
    return [name for row in table.rows for name in row.runs]


def test_compare_lists_differing_fields(paths):
    found = settings(experiments.compare(paths))
    assert found == [
        {"optim.learning_rate": 1e-3, "data set.num_train": 9},
        {"optim.learning_rate": 3e-4, "data set.num_train": 8},
    ]


def test_versions_are_compared(paths):
    path = f"{paths[0]}/config.json"
    with open(path) as file:
        config = json.load(file)
    config["versions"]["keras"] = "0.1"
    with open(path, "w") as file:
        json.dump(config, file)
    assert settings(experiments.compare(paths))[0]["version of keras"] == "0.1"


def test_compare_lists_results(paths):
    table = experiments.compare(paths)
    assert table.rows[1].runs == {"b": "finished"}
    lines = table.markdown(across=True).splitlines()
    found = dict(line.strip("| ").split(" | ")[::2] for line in lines if " | " in line)
    expected = {
        "runs": "b",
        "optim.learning_rate": "0.0003",
        "data set.num_train": "8",
        "eval_accuracy": "75.00%",
        "eval_loss": "1 nats",
        "knn/k1": "25.00%",
        "best eval_accuracy": "85.00%",
        "training loss": "1",
        "images per second": "200",
    }
    assert list(found.items()) == list(expected.items())


def test_unfinished_run_is_compared_with_its_step(tmp_path, paths):
    other = write_run(tmp_path / "c", finished=False)
    table = experiments.compare([*paths, other])
    assert table.rows[2].runs == {"c": "step 10 of 20"}
    assert "| c, step 10 of 20 |" in table.markdown()


def test_runs_of_a_sweep_are_grouped_over_seeds(tmp_path):
    runs = {f"{rate},{seed}": (rate, seed) for rate in (1e-3, 1e-2) for seed in (0, 1)}
    for name, (rate, seed) in runs.items():
        write_run(tmp_path / "sweep" / "runs" / name, rate * 10 + seed / 100, rate=rate, seed=seed)
    (tmp_path / "sweep" / "runs" / "waiting").mkdir()
    assert names(experiments.compare([str(tmp_path / "sweep")])) == list(runs)
    assert len(experiments.compare([str(tmp_path / "sweep"), str(tmp_path / "sweep" / "runs" / "0.001,0")]).rows) == 4


def test_run_names_are_made_unique(tmp_path):
    paths = [write_run(tmp_path / group / "run") for group in ("one", "two")]
    assert names(experiments.compare(paths)) == ["one/run", "two/run"]


@pytest.mark.parametrize(("damage", "error"), [("config.json", ValueError), ("none", FileNotFoundError)])
def test_a_directory_that_is_not_a_run_is_skipped(tmp_path, paths, damage, error, caplog):
    """As in `keras-vit runs runs/*`, where a run failed before it began."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / damage).write_text("{")
    (tmp_path / "table.md").touch()
    others = [str(tmp_path / "table.md"), str(tmp_path / "x")]
    found = experiments.compare([others[0], *paths, others[1]])
    assert names(found) == ["a", "b"]
    assert len(caplog.messages) == 2
    for path, message in zip(others, caplog.messages, strict=True):
        assert message.startswith(f"{path} is skipped: ") and "\n" not in message
    assert names(experiments.compare([paths[0], *others])) == ["a"]
    with pytest.raises(error, match=r"config\.json"):
        experiments.compare(others[1:])
    with pytest.raises((OSError, ValueError), match=r"table\.md"):
        experiments.compare(others)  # the first error


def test_comparison_of_one_run_is_refused(paths):
    for given in (paths[:1], [paths[0], f"{paths[0]}/"]):
        with pytest.raises(ValueError, match="at least two"):
            experiments.compare(given)


def test_compare_command_prints_the_table(tmp_path, paths, capsys):
    (tmp_path / "weights.npz").touch()
    other = write_run(tmp_path / "c", model=recipe.Model(weights=f"{tmp_path}/weights.npz"))
    assert programs.call("train.runs", *paths, other) == 0
    text = capsys.readouterr().out
    assert "| optim.learning_rate | 0.001 | 0.0003 | 0.001 |" in text
    assert "weights.npz" in text and str(tmp_path) not in text
    assert programs.call("train.runs", *paths, "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert [row["results"][0]["eval_accuracy"] for row in content] == [0.5, 0.75]


def test_speed_is_the_median_images_per_second(tmp_path, paths):
    """A slow interval, such as that of an evaluation, does not count."""
    with open(f"{paths[0]}/metrics.jsonl", "a") as file:
        for step, speed in ((21, 310.0), (22, 2.0), (23, 305.0)):
            file.write(json.dumps({"step": step, "loss": 1.5, "images_per_second": speed}) + "\n")
    found = experiments.compare(paths).rows[0].results[0]
    assert found["training loss"] == 1.5  # the last, not the smallest
    assert found["images per second"] == 300  # of 2, 100, 300, 305 and 310


def test_best_value_of_an_error_metric_is_the_smallest(tmp_path):
    paths = [write_run(tmp_path / name, task="regression") for name in "ab"]
    for path in paths:
        with open(f"{path}/metrics.jsonl", "a") as file:
            file.writelines(
                json.dumps({"step": step, "eval_standardized_mae": value}) + "\n"
                for step, value in ((21, 2.0), (22, 3.0))
            )
    assert experiments.compare(paths).rows[0].results[0]["best eval_standardized_mae"] == 2.0


@pytest.mark.parametrize("count", [6, 7])
def test_at_most_six_runs_are_columns(count, monkeypatch, capsys):
    table = Table([Row({"seed": seed}, {str(seed): "finished"}) for seed in range(count)], [Metric("eval_accuracy")])
    monkeypatch.setattr(experiments, "compare", lambda paths: table)
    assert programs.call("train.runs", "runs", "--compare") == 0
    assert capsys.readouterr().out == table.markdown(across=count == 6) != table.markdown(across=count == 7)
