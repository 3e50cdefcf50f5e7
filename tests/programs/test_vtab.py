"""`train.vtab`, which fine-tunes on every task and averages."""

import json
import sys

import pytest
from absl.testing import flagsaver

from keras_vit import cli
from keras_vit.runs import errors
from tests import programs


def test_vtab_starts_the_recipe_of_the_task_once(monkeypatch, tmp_path):
    vtab_program = programs.load("train.vtab")
    commands = []

    def run(command, output):
        commands.append(command)
        directory = tmp_path / "svhn"
        directory.mkdir()
        assert output == str(directory / "output.txt")
        (directory / "model.keras").write_text("")
        (directory / "metrics.jsonl").write_text('{"step": 1, "eval_accuracy": 0.25}\n{"step": 1, "loss": 2.0}\n')

    monkeypatch.setattr(vtab_program, "run_program", run)
    options = {"set": ["total_steps=5"], "options": "data_dir='/data'&download=True"}
    with flagsaver.flagsaver(workdir=str(tmp_path), weights="x.npz", model="ViT_S16", **options):
        assert vtab_program.fine_tune("svhn") == vtab_program.fine_tune("svhn") == 0.25
    (command,) = commands
    assert command[1:5] == ["-m", "keras_vit", "train", "--config=vtab:ViT_S16,svhn"]
    assert {"--config.model.weights=x.npz", "--config.total_steps=5"} < set(command)
    assert "--config.data.source=vtab:svhn#data_dir='/data'&download=True" in command


def test_a_finished_run_of_other_weights_is_not_used(monkeypatch, tmp_path):
    vtab_program = programs.load("train.vtab")
    weights, directory = tmp_path / "x.npz", tmp_path / "svhn"
    weights.write_text("old")

    def run(command, output):
        directory.mkdir()
        (directory / "model.keras").write_text("")
        (directory / "metrics.jsonl").write_text('{"step": 1, "eval_accuracy": 0.25}\n')

    monkeypatch.setattr(vtab_program, "run_program", run)
    flags = {"workdir": str(tmp_path), "weights": str(weights)}
    with flagsaver.flagsaver(**flags):
        assert vtab_program.fine_tune("svhn") == 0.25
    for changed in ({"weights": "augreg"}, {"model": "ViT_S16"}, {"set": ["total_steps=5"]}):
        with flagsaver.flagsaver(**{**flags, **changed}), pytest.raises(ValueError, match="--workdir"):
            vtab_program.fine_tune("svhn")
    weights.write_text("new")
    with flagsaver.flagsaver(**flags), pytest.raises(ValueError, match="--workdir"):
        vtab_program.fine_tune("svhn")


def test_vtab_continues_after_a_failed_run(monkeypatch, capsys, tmp_path):
    """Also with the options of the data, which are passed to the source and to the run."""
    vtab_program = programs.load("train.vtab")
    opened = []
    monkeypatch.setattr(vtab_program.data, "open_source", lambda spec, split: opened.append(spec))

    def run(command, output):
        if "vtab:dtd#download=True" in " ".join(command):
            says = f"error: The loss is nan\n{cli.WHERE_FROM}"
            run_program([sys.executable, "-c", f"import sys; sys.stderr.write({says!r}); sys.exit(70)"], output)
        directory = tmp_path / "svhn"
        directory.mkdir()
        (directory / "metrics.jsonl").write_text('{"step": 1, "eval_accuracy": 0.25}\n')

    run_program = vtab_program.run_program
    monkeypatch.setattr(vtab_program, "run_program", run)
    chosen = {"tasks": ["dtd", "svhn"], "options": "download=True", "json": True}
    with flagsaver.flagsaver(workdir=str(tmp_path), weights="x.npz", **chosen):
        assert vtab_program.main([]) == 1
    captured = capsys.readouterr()
    content = json.loads(captured.out)["vtab"]
    assert content["svhn"] == 0.25
    assert content["missing"] == {"dtd": "its run failed: exit code 70, The loss is nan"}
    assert "The loss is nan" in (tmp_path / "dtd" / "output.txt").read_text()
    assert opened == ["vtab:dtd#download=True", "vtab:svhn#download=True"]


def test_vtab_stops_after_a_run_that_received_a_stop_request(monkeypatch, tmp_path):
    vtab_program = programs.load("train.vtab")
    monkeypatch.setattr(vtab_program.data, "open_source", lambda spec, split: None)
    run_program = vtab_program.run_program
    stopped = [sys.executable, "-c", "exit(75)"]
    monkeypatch.setattr(vtab_program, "run_program", lambda _, output: run_program(stopped, output))
    with flagsaver.flagsaver(workdir=str(tmp_path), weights="x.npz"), pytest.raises(errors.Interrupted):
        vtab_program.main([])


@pytest.mark.slow
def test_vtab_ends_at_an_error_that_every_run_would_have(monkeypatch, tmp_path):
    vtab_program = programs.load("train.vtab")
    monkeypatch.setattr(vtab_program.data, "open_source", lambda spec, split: None)
    with (
        flagsaver.flagsaver(workdir=str(tmp_path), weights="x.npz", set=["optim.learning_rat=1"]),
        pytest.raises(ValueError, match="rejected its arguments: .*no field optim.learning_rat. Did you mean"),
    ):
        vtab_program.main([])


def test_the_program_fails_where_nothing_was_measured(monkeypatch, capsys, tmp_path):
    program = programs.load("train.vtab")

    def missing(spec, split):
        raise FileNotFoundError(f"{spec} is not prepared.")

    monkeypatch.setattr(program.data, "open_source", missing)
    arguments = (f"--workdir={tmp_path}", "--weights=x.npz", "--tasks=dtd", "--tasks=svhn")
    monkeypatch.setattr(programs, "load", lambda name: program)
    assert programs.call("train.vtab", *arguments) == 1
    assert capsys.readouterr().out.count("is not prepared.") == 2
