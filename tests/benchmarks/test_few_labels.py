"""The experiment with few labels: which images are labeled, which settings are tried, and what is reported."""

import json
import pathlib

import numpy as np
import pytest
from absl.testing import flagsaver

from keras_vit import data
from tests import programs


@pytest.fixture(scope="module")
def few_labels():
    return programs.load("benchmarks.few_labels")


def test_labeled_images(few_labels):
    """As many of each class, a smaller share within a larger one, and none to choose settings on among them."""
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 100))
    few, validation = few_labels.choose(labels, 0.01, 200)
    many, again = few_labels.choose(labels, 0.1, 200)
    np.testing.assert_array_equal(np.bincount(labels[few]), 1)
    np.testing.assert_array_equal(np.bincount(labels[many]), 10)
    np.testing.assert_array_equal(validation, again)
    assert set(few) < set(many) and not set(many) & set(validation)


@pytest.fixture
def workdir(few_labels, tmp_path, monkeypatch):
    """Random images, and programs that leave behind what they would have measured."""
    rng = np.random.default_rng(0)
    arrays = {f"x_{split}": rng.integers(0, 256, (200, 28, 28)).astype("uint8") for split in ("train", "test")}
    np.savez(tmp_path / "all.npz", **arrays, y_train=np.arange(200) % 10, y_test=np.arange(200) % 10)
    calls = []

    def run_program(name, arguments):
        calls.append((name, arguments))
        if name == "evaluate":
            return json.dumps({"knn": {"k20": 0.5}, "linear_probe": {"accuracy": 0.6}}).encode()
        directory = pathlib.Path(next(a for a in arguments if a.startswith("--workdir=")).partition("=")[2])
        directory.mkdir(parents=True)
        rate = next((float(a.partition("=")[2]) for a in arguments if "learning_rate" in a), 0.0)
        start = 0.1 if any("model.checkpoint" in a for a in arguments) else 0.0
        line = {"step": 1, "eval_accuracy": 0.5 + start - abs(rate - 1e-3)}
        (directory / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        (directory / "model.keras").write_text("")
        return b""

    monkeypatch.setattr(few_labels, "run_program", run_program)
    with flagsaver.flagsaver(workdir=str(tmp_path / "runs"), source=f"npz:{tmp_path / 'all.npz'}", seeds=2, steps=3):
        yield tmp_path / "runs", calls


def test_the_whole_experiment(few_labels, workdir, capsys):
    directory, calls = workdir
    assert few_labels.main([]) == 0
    table = capsys.readouterr().out
    rows = [line for line in table.splitlines() if "%" in line]
    assert len(rows) == 6 and all("| 0.001 |" in row for row in rows)  # the best rate of each start and share
    assert [row.split("|")[2].strip() for row in rows] == ["scratch", "mae", "masked patch"] * 2
    assert all(("60.00" in row.split("|")[5]) == ("scratch" not in row) for row in rows)
    trained = [arguments for name, arguments in calls if name == "main"]
    # Two pre-trainings per seed; six settings to choose from, and the chosen one per seed, for each start and share
    assert len(trained) == 2 * 2 + 6 * (6 + 2)
    tuned = [a for a in trained if "--config.data.eval_split=validation" in a]
    assert all("--config.seed=0" in a for a in tuned)
    assert all(any(x.startswith("--config.total_steps=3") for x in a) for a in trained)
    for share, count in ((1, 10), (10, 20)):
        source = data.open_source(f"npz:{directory}/data/{share}_percent.npz", split="train")
        assert source.num_examples == count
    before = len(calls)
    assert few_labels.main([]) == 0  # finished runs are not repeated
    assert len(calls) == before
