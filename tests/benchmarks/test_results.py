"""The program that writes the tables of docs/results.md."""

import json
import shutil

import pytest
from absl.testing import flagsaver

from benchmarks import tables
from keras_vit.runs import recipe_file
from keras_vit.util import formatting
from tests import programs


def test_mean_and_sample_standard_deviation_in_percent():
    assert tables.percent([0.9, 0.92, 0.94]) == "92.00 ± 2.00"
    assert tables.percent([0.5]) == "50.00"
    assert tables.percent([]) == "-"


def test_tables_replace_the_previous_content(tmp_path):
    path = tmp_path / "results.md"
    path.write_text("before\n<!-- models -->\nold\n<!-- /models -->\nafter\n")
    tables.write_between(path, "models", formatting.markdown_table(["model", "accuracy:"], [["a", "1"]]))
    expected = "before\n<!-- models -->\n| model | accuracy |\n|---|---:|\n| a | 1 |\n<!-- /models -->\nafter\n"
    assert path.read_text() == expected
    with pytest.raises(ValueError, match="transfer"):
        tables.write_between(path, "transfer", "x")


def test_rows_replace_earlier_rows_of_the_same_model(tmp_path):
    path = tmp_path / "results.md"
    path.write_text("<!-- models -->\nold text\n\n| model | x |\n|---|---|\n| a | 1 |\n| b | 2 |\n<!-- /models -->\n")
    tables.replace_rows(path, "models", formatting.markdown_table(["model", "x"], [["c", "3"], ["a", "4"]]))
    of_three = "| model | x |\n|---|---|\n| a | 4 |\n| b | 2 |\n| c | 3 |"
    assert path.read_text() == f"<!-- models -->\n{of_three}\n<!-- /models -->\n"
    tables.replace_rows(path, "models", formatting.markdown_table(["model", "y"], [["b", "5"]]))
    assert path.read_text() == "<!-- models -->\n| model | y |\n|---|---|\n| b | 5 |\n<!-- /models -->\n"


def test_the_models_have_recipes():
    models = programs.load("benchmarks.results").MODELS
    found = [recipe_file.load(config)[0] for config, _ in models.values()]
    assert len(found) == len({(recipe.model.variant, recipe.model.image_size, recipe.total_steps) for recipe in found})


def test_results_are_read_from_the_runs(monkeypatch, capsys, tmp_path):
    """Fakes replace all programs and write their results: two seeds of one model, later the transfer."""
    results_program = programs.load("benchmarks.results")
    accuracies = {"bit_0": 0.9, "bit_1": 0.92, "finetune_0": 0.8, "scratch_0": 0.7, "scratch_low_rate_0": 0.6}

    steps = 7

    def run_program(name, arguments):
        if name == "evaluate":
            seed = arguments[0][-1]
            found = {"classification": {"accuracy": accuracies[f"bit_{seed}"]}, "fewshot": {"10shot": 0.5}}
            return json.dumps({**found, "knn": {"k20": 0.75}}).encode()
        directory = next(value for value in arguments if value.startswith("--workdir=")).removeprefix("--workdir=")
        path = tmp_path / directory.rpartition("/")[2]
        path.mkdir()
        (path / "model.keras").write_text("")
        recipe = {"total_steps": steps, "precision": "float32"}
        config = {"recipe": recipe, "data": {"class_names": []}, "preprocess": "", "output": "softmax"}
        config["versions"] = {"keras": "3.15.1"}
        (path / "config.json").write_text(json.dumps(config))
        line = {"step": 7, "eval_accuracy": accuracies.get(path.name, 0.0)}
        (path / "metrics.jsonl").write_text(json.dumps(line) + "\n")

    monkeypatch.setattr(results_program, "run_program", run_program)
    monkeypatch.setattr(results_program, "make_data", lambda folder: None)
    monkeypatch.chdir(tmp_path)
    with flagsaver.flagsaver(workdir=str(tmp_path)), pytest.raises(ValueError, match="docs/results.md"):
        results_program.main([])
    with flagsaver.flagsaver(workdir=str(tmp_path), only=["bit"], seeds=2, steps=7):
        results_program.main([])
    of_bit = "| 7 | 0.0 | 0, 1 | 91.00 ± 1.41 | 50.00 ± 0.00 | 75.00 ± 0.00 |"
    assert of_bit in capsys.readouterr().out
    with flagsaver.flagsaver(workdir=str(tmp_path), only=["transfer"], seeds=1, steps=7):
        results_program.main([])
    of_models, of_transfer = capsys.readouterr().out.strip().split("\n\n")
    assert of_bit in of_models, "what was finished before stays in the tables"
    assert [line.split("|")[-2].strip() for line in of_transfer.splitlines()[2:]] == ["80.00", "70.00", "60.00"]
    for name in ("scratch_low_rate_1", "bit_old"):  # one without a counterpart, and one of another project
        shutil.copytree(tmp_path / "bit_0", tmp_path / name)
    with flagsaver.flagsaver(workdir=str(tmp_path)):
        assert results_program.finished("scratch") == [0] and results_program.finished("bit") == [0, 1]
    accuracies["bit_2"], steps = 0.9, 5
    with (
        flagsaver.flagsaver(workdir=str(tmp_path), only=["bit"], seeds=3, steps=5),
        pytest.raises(ValueError, match=r"\[5, 7\]"),
    ):
        results_program.main([])
