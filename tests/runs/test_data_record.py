"""The data of a run: recognized at any path, rejected if they have changed."""

import dataclasses
import json
import pathlib
import types

import numpy as np
import pytest

from keras_vit import data, evaluators
from keras_vit import recipe as recipes
from keras_vit.inference import sample_images
from keras_vit.runs import data_record, run_directory, run_fields
from keras_vit.training.run_data import RunData
from tests import programs, tiny
from train.datasets import writer

DIGITS = data.open_source("digits", "test")


def write_digits(folder, count):
    """The first images of each digit as files in a folder of the class."""
    for digit in range(10):
        (folder / str(digit)).mkdir(parents=True)
        for number, index in enumerate(np.flatnonzero(DIGITS.labels() == digit)[:count]):
            content = tiny.encode(DIGITS.images[index][..., 0], "png")
            (folder / str(digit) / f"{number}.png").write_bytes(content)


def recipe_of(source):
    pp = "decode(1)|value_range(-1, 1)"
    return recipes.Recipe(data=recipes.Data(source=source, pp_train=pp, pp_eval=pp))


def describe(source):
    return data_record.describe(source, *(data.open_source(source, split) for split in ("train", "test")))


def about(source):
    train, test = (data.open_source(source, split) for split in ("train", "test"))
    counts = {"num_classes": 10, "num_train": train.num_examples, "num_eval": test.num_examples}
    return {"name": train.name, "class_names": list(train.class_names), "label_kind": "class", **counts}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A finished run on `folder:digits` that was started in `tmp_path`, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    write_digits(tmp_path / "digits", 5)
    tiny.write_digits_run(tmp_path / "run")
    (tmp_path / "run" / "config.json").unlink()
    run_directory.write_config("run", recipe_of("folder:digits"), about("folder:digits"))
    data_record.write("run", describe("folder:digits"))
    return tmp_path / "run"


def check(run, source, **options):
    run_fields.check(str(run), recipe_of(source), about(source), files=describe(source), **options)


def test_changed_images_are_refused(run, caplog):
    check(run, "folder:digits")
    pathlib.Path("digits/3/4.png").write_bytes(b"another")
    with pytest.raises(ValueError, match=r"data of .*run have changed.*: 3 \(\d+ -> \d+ files\)\. .*--change_recipe"):
        check(run, "folder:digits")
    check(run, "folder:digits", change_recipe=True)
    assert "Changed since the last start: other images" in caplog.text


def test_moved_images_are_refused(run):
    pathlib.Path("digits/5/1.png").rename("digits/6/moved.png")
    with pytest.raises(ValueError, match=r": 5 \((\d+) -> \d+ files\), 6 \("):
        check(run, "folder:digits")


def test_the_same_data_from_another_directory_resume(run, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    for source in ("folder:../digits", f"folder:{tmp_path}/digits", f"folder:{tmp_path}/digits#test_fraction=0.2"):
        check(run, source)
    write_digits(tmp_path / "other" / "digits", 6)
    with pytest.raises(ValueError, match="have changed.*: 0 .* and 5 more"):
        check(run, "folder:digits")


def test_other_labels_of_the_same_files_are_refused(tmp_path):
    """The fingerprint of record files has their names and sizes."""
    writer.write_tfrecords(data.open_source("digits", "train[:8]"), str(tmp_path / "a"), "train", 1)
    source, run = f"tfrecord:{tmp_path / 'a'}", str(tmp_path / "run")
    about = {"class_names": ["a"]}
    run_directory.write_config(run, recipe_of(source), about)
    (tmp_path / "run" / "model.keras").write_bytes(b"")
    files = data_record.describe(source, data.open_source(source))
    data_record.write(run, files)
    for other in (f"{source}/train-*", f"{source}#num_examples=8"):
        run_fields.check(run, recipe_of(other), about, files=files)
    with pytest.raises(ValueError, match="data.source"):
        run_fields.check(run, recipe_of(f"{source}#label_offset=-1"), about, files=files)


@pytest.mark.slow
@pytest.mark.parametrize("shard_by", ["rows", "files"])
def test_number_of_workers_is_recorded_only_if_sharded_by_files(tmp_path, shard_by):
    """With shard_by=files, another number of workers would train on other batches."""
    for split in ("train", "test"):
        writer.write_tfrecords(data.open_source("digits", f"{split}[:8]"), str(tmp_path / "data"), split, 1)
    recipe = recipe_of(f"tfrecord:{tmp_path}/data#shard_by={shard_by}")
    recipe.model.image_size, recipe.data.pp_train = 8, "decode(1)|resize(8)"
    recipe.data.pp_eval = recipe.data.pp_train
    splits = RunData(recipe, types.SimpleNamespace(num_workers=2, num_replicas=2))
    run_directory.write_config(str(tmp_path), recipe, splits.describe())
    (tmp_path / run_directory.MODEL).touch()
    run_fields.check(str(tmp_path), recipe, splits.describe())
    splits.backend.num_workers = 4
    if shard_by == "rows":
        run_fields.check(str(tmp_path), recipe, splits.describe())
    else:
        with pytest.raises(ValueError, match="data set.workers: 2 -> 4"):
            run_fields.check(str(tmp_path), recipe, splits.describe())


def test_changed_recipe_is_not_reported_as_changed_data(run):
    other = dataclasses.replace(recipe_of("folder:digits"), seed=9)
    with pytest.raises(ValueError, match="another recipe.*seed"):
        run_fields.check(str(run), other, about("folder:digits"), files=describe("folder:digits"))


def test_a_run_without_its_record_resumes(run):
    (run / "data.json").unlink()
    check(run, "folder:digits")
    data_record.write(str(run), describe("folder:digits"))
    assert data_record.changes(str(run), data.open_source("folder:digits", "test")) == []


def test_the_record_is_small_and_has_the_absolute_path(run, tmp_path):
    content = json.loads((run / "data.json").read_text())
    assert content["source"] == f"folder:{tmp_path}/digits"
    assert json.loads((run / "config.json").read_text())["recipe"]["data"]["source"] == "folder:digits"
    splits = [
        [],
        {"test": 1},
        {"test": {}},
        {"test": {"digest": "", "classes": []}},
        {"test": {"digest": "", "counts": 1}},
    ]
    for damaged in ({}, *({"source": "digits", "splits": part} for part in splits)):
        (run / "data.json").write_text(json.dumps(damaged))
        with pytest.raises(ValueError, match=r"data\.json.*Delete it"):
            data_record.read(str(run))


def test_data_of_a_run_are_located_from_another_directory(run, tmp_path, monkeypatch, caplog):
    recorded = f"folder:{tmp_path}/digits"
    assert data_record.locate(str(run), "folder:digits") == "folder:digits"
    write_digits(tmp_path / "other" / "digits", 1)
    monkeypatch.chdir(tmp_path / "other")
    assert data_record.locate(str(run), "folder:digits") == recorded  # not the folder of that name here
    (tmp_path / "digits").rename(tmp_path / "gone")
    assert data_record.locate(str(run), "folder:digits") == "folder:digits"
    assert recorded in caplog.text
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"{recorded}.*--data"):
        data_record.locate(str(run), "folder:digits")


def evaluate(run, capsys, *arguments):
    assert programs.call("train.evaluate", f"--model={run}", "--json", *arguments) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_evaluate_uses_the_data_of_the_run(run, tmp_path, monkeypatch, capsys, caplog):
    """From another directory, another folder of the same name was evaluated without a warning."""
    here = evaluate(run, capsys)
    write_digits(tmp_path / "other" / "digits", 10)
    monkeypatch.chdir(tmp_path / "other")
    there = evaluate(run, capsys)
    assert (there["examples"], there["loss"]) == (here["examples"], here["loss"]) == (10, here["loss"])
    assert "has changed" not in caplog.text
    assert evaluate(run, capsys, "--data=folder:digits")["examples"] == 20
    assert "has changed" not in caplog.text  # other data on purpose
    for number in range(20):  # some of them are test images
        content = tiny.encode(np.full((8, 8), number, np.uint8), "png")
        (tmp_path / "digits" / "0" / f"new{number}.png").write_bytes(content)
    evaluate(run, capsys)
    assert caplog.text.count("has changed since training") == 1


@pytest.mark.slow
def test_sample_images_of_a_run_are_found_from_another_directory(run, tmp_path, monkeypatch, caplog):
    from keras_vit.inference import open_predictor

    card = open_predictor(run).card
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert len(sample_images.for_model(card, 100).contents) == 10
    assert "run" not in card.to_dict()
    without = dataclasses.replace(
        card,
        run="",
        data={**card.data, "num_eval": 9},
        recipe={"data": {"source": f"folder:{tmp_path}/digits", "eval_split": "test"}},
    )
    sample_images.for_model(without, 100)  # of an artifact, only the number is known
    assert "10 examples instead of 9" in caplog.text


def test_evaluator_splits_are_recorded_once_each():
    opened = []
    open_split = evaluators.split_opener(
        10, opened_source=lambda name, source: opened.append((name, source.num_examples))
    )
    for _ in range(2):
        open_split("digits", "test", "value_range(-1, 1)")
    assert opened == [("digits", 360)]


@pytest.mark.slow
def test_a_training_with_replaced_images_is_refused(tmp_path, monkeypatch):
    """The run resumed without a warning, with different weights."""
    monkeypatch.setattr("keras_vit.inspection.plots.draw_report", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    write_digits(tmp_path / "digits", 5)
    fields = {f"model.arguments.{name}": value for name, value in tiny.ARGUMENTS.items()}
    fields |= {"data.batch_size": 10, "data.eval_batch_size": 10}
    arguments = ["folder:digits", "--config=digits", "--workdir=run"]
    arguments += [f"--override={name}={value}" for name, value in fields.items()]
    programs.call("train.main", *arguments, "--override=total_steps=2")
    assert data_record.read("run")["source"] == f"folder:{tmp_path}/digits"
    programs.call("train.main", *arguments, "--override=total_steps=3")
    pathlib.Path("digits/3/4.png").write_bytes(pathlib.Path("digits/4/4.png").read_bytes())
    with pytest.raises(ValueError, match=r"have changed.*: 3 \(\d+ -> \d+ files\)"):
        programs.call("train.main", *arguments, "--override=total_steps=4")
