"""The experiment with few labels: the labeled images, the compared settings and the report."""

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


def test_labeled_images_are_balanced_nested_and_separate_from_validation(few_labels):
    """Equal numbers per class; a smaller subset is part of a larger one; no validation image is among them."""
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 100))
    few, validation = few_labels.choose(labels, 0.01, 200)
    many, again = few_labels.choose(labels, 0.1, 200)
    np.testing.assert_array_equal(np.bincount(labels[few]), 1)
    np.testing.assert_array_equal(np.bincount(labels[many]), 10)
    np.testing.assert_array_equal(validation, again)
    assert set(few) < set(many) and not set(many) & set(validation)


@pytest.fixture
def workdir(few_labels, tmp_path, monkeypatch):
    """Random images, and fake programs that write fixed results."""
    rng = np.random.default_rng(0)
    arrays = {f"x_{split}": rng.integers(0, 256, (200, 28, 28)).astype("uint8") for split in ("train", "test")}
    np.savez(tmp_path / "all.npz", **arrays, y_train=np.arange(200) % 10, y_test=np.arange(200) % 10)
    calls = []

    def run_program(name, arguments):
        calls.append((name, arguments))
        if name == "evaluate":
            found = {f"knn {share}": {"k20": 0.5} for share in few_labels.SHARES}
            found |= {f"linear_probe {share}": {"accuracy": 0.6} for share in few_labels.SHARES}
            return json.dumps(found).encode()
        value = {a.partition("=")[0].removeprefix("--config."): a.partition("=")[2] for a in arguments}
        directory = pathlib.Path(value["--workdir"])
        directory.mkdir(parents=True)
        if "task" in value:
            rate, steps = float(value["optim.learning_rate"]), directory.name.split("_")[-2]
            accuracy = 0.5 + 0.1 * ("model.weights" in value)
            accuracy += 0.01 - abs(rate - 1e-3) if steps == "3000" else -abs(rate - 3e-3)
            # The best on the test images is another rate, which must not be chosen.
            lines = [{"step": 1, "eval_accuracy": accuracy}, {"step": 1, "test/accuracy": accuracy + 100 * rate}]
            (directory / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
        (directory / "model.keras").write_text("")
        return b""

    monkeypatch.setattr(few_labels, "run_program", run_program)
    with flagsaver.flagsaver(workdir=str(tmp_path / "runs"), source=f"npz:{tmp_path / 'all.npz'}", seeds=2, steps=3):
        yield tmp_path / "runs", calls


def test_experiment_writes_its_tables_after_each_seed(few_labels, workdir, capsys):
    directory, calls = workdir
    assert few_labels.main([]) == 0
    tables = capsys.readouterr().out.split("\n\n")  # one after each share and start of each seed
    assert len(tables) == 2 * 6 + 1 and "mae" not in tables[0] and "10%" not in tables[2]
    for table, seeds in ((tables[5], "0"), (tables[11], "0, 1")):
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "%" in line]
        assert [row[0] for row in rows] == ["1%"] * 3 + ["10%"] * 3
        assert [row[1] for row in rows] == ["scratch", "mae", "masked patch"] * 2
        assert all(row[2:5] == ["0.001", "3,000", seeds] for row in rows)  # the best of the grid
        assert [row[5][:5] for row in rows] == ["61.00", "71.00", "71.00"] * 2
        assert [row[6][:5] for row in rows] == ["-", "50.00", "50.00"] * 2
        assert [row[7][:5] for row in rows] == ["-", "60.00", "60.00"] * 2
    trained = [arguments for name, arguments in calls if name == "main"]
    # Two pre-training runs per seed; three rates with two numbers of steps, and one run for the other seed
    assert len(trained) == 2 * 2 + 6 * (3 * 2 + 1)
    assert all(arguments[-1] == "--config.total_steps=3" for arguments in trained)
    assert sum(name == "evaluate" for name, _ in calls) == 2 * 2
    for share, count in ((1, 10), (10, 20)):
        source = data.open_source(f"npz:{directory}/data/{share}_percent.npz", split="train")
        assert source.num_examples == count
    before = len(calls)
    assert few_labels.main([]) == 0  # finished runs are not repeated
    assert len(calls) == before


def test_the_document_contains_the_measurements(few_labels, workdir, monkeypatch, tmp_path):
    """The table names its seeds and the machine."""
    document = tmp_path / "results.md"
    document.write_text("<!-- few labels -->\nNot measured yet.\n<!-- /few labels -->\n")
    monkeypatch.setattr(few_labels, "DOCUMENT", str(document))
    monkeypatch.setattr(few_labels, "machine", lambda directory: f"Measured in {pathlib.Path(directory).name}.")
    with flagsaver.flagsaver(steps=None, seeds=1):
        few_labels.main([])
    text = document.read_text()
    assert "Measured in scratch_1_percent_0.001_1000_0." in text and "Not measured" not in text
    assert "| 0.001 | 3,000 | 0 | 71.00 |" in text
