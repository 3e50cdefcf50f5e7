"""Parts of a training run: the figure at its end, and the head of its initial weights."""

import importlib
import types

import numpy as np
import pytest

import keras_vit
from keras_vit import recipe as recipes
from keras_vit.inspection import plots
from keras_vit.tasks import Shown
from keras_vit.training import run as training_run
from keras_vit.training import run_summary
from keras_vit.training.chosen_recipe import Choices


def validation_of(shown, results, tally=None):
    task = types.SimpleNamespace(show=lambda *_: shown)
    return types.SimpleNamespace(tally=tally, examples=None, results=results, task=task)


@pytest.mark.parametrize(("task", "headline"), [("classification", " (largest class 80.00%)"), ("segmentation", "")])
def test_report_figure_of_a_run_has_captions(task, headline, tmp_path, monkeypatch):
    """Eight of ten images are of the first class; nine were predicted as that class."""
    drawn = []
    monkeypatch.setattr(plots, "draw_report", lambda path, *places, **options: drawn.append((path, places, options)))
    images = np.arange(12).reshape(12, 1, 1, 1)
    right, confidence = np.arange(12) % 3 > 0, np.linspace(0, 1, 12)
    shown = Shown({"image": images}, [f"caption {number}" for number in range(12)], right, confidence)
    recipe = recipes.Recipe(task=task)
    results = {f"eval_{recipe.task.score.name}": 0.9, "examples": 1_234, "split": "test"}
    run_summary.draw_figure(recipe, str(tmp_path), validation_of(shown, results, np.array([[8, 0], [1, 1]])))
    ((path, (history, chosen, captions, marks, quantities), options),) = drawn
    assert path == f"{tmp_path}/report.png" and history == []
    assert options["title"] == f"{recipe.task.score.name} 90.00%{headline}"
    assert " · 1,234 images, test split · " in options["subtitle"]
    assert captions == [f"caption {number}" for number in chosen.ravel()]
    assert marks.tolist() == right[chosen.ravel()].tolist()
    assert quantities == recipe.task.metrics[:2]


def test_report_figure_of_a_run_may_have_no_captions(tmp_path, monkeypatch):
    """A score other than the accuracy has no largest class, nor has an accuracy without counts of the classes."""
    drawn = []
    monkeypatch.setattr(plots, "reconstructions", lambda *places: drawn.append(places))
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(path))
    shown = Shown({"image": np.zeros((2, 1, 1, 1))}, [], None, None)
    for task, headline in (("mae", "explained 25.00%"), ("classification", "accuracy 25.00%")):
        recipe = recipes.Recipe(task=task)
        results = {f"eval_{recipe.task.score.name}": 0.25, "examples": 2, "split": "test"}
        run_summary.draw_figure(recipe, str(tmp_path), validation_of(shown, results))
        (images, title, count, history, quantities), path = drawn[-2:]
        assert images == shown.images and title.endswith(f": {headline}") and count == plots.MAX_IMAGES
        assert (history, quantities, path) == ([], recipe.task.metrics[:2], f"{tmp_path}/report.png")


def test_a_figure_that_cannot_be_drawn_is_a_warning(tmp_path, monkeypatch, caplog):
    def missing(*_, **__):
        raise ImportError("Figures need matplotlib.")

    monkeypatch.setattr(plots, "draw_report", missing)
    shown = Shown({"image": np.zeros((2, 1, 1, 1))}, ["a", "b"], None, None)
    results = {"eval_accuracy": 0.25, "examples": 2, "split": "test"}
    run_summary.draw_figure(recipes.Recipe(), str(tmp_path), validation_of(shown, results))
    assert caplog.messages == ["report.png was not written: Figures need matplotlib."]


def test_every_choice_of_a_fine_tuning_reaches_the_recipe(monkeypatch, tmp_path, capsys):
    calls = []
    module = importlib.import_module("keras_vit.training.fine_tune")
    monkeypatch.setattr(module, "recipe_of", lambda choices, path: calls.append((choices, path)) or "recipe")
    monkeypatch.setattr(module.train, "train", lambda *places, **options: calls.append((places, options)))
    monkeypatch.setattr(module, "load_run", lambda path: path)
    given = {"model": "ViT_S16", "weights": "augreg", "image_size": 96, "adapt": "head", "time": "20m"}
    devices = {"distribute": "mirrored", "tpu": "mine", "virtual_devices": 2, "multi_host": True}
    run = keras_vit.fine_tune(tmp_path, **given, overrides={"seed": 3}, **devices, verbose=False)
    (choices, path), (places, options) = calls
    assert choices == Choices(str(tmp_path), **given, overrides={"seed": 3})
    assert run == path == f"runs/{tmp_path.name}" and places == ("recipe", path)
    options.pop("show")("text")
    assert capsys.readouterr().out == "" and options == devices
    assert keras_vit.fine_tune("photos", workdir=tmp_path, epochs=2) == str(tmp_path) and calls[-1][1]["show"] is print
    assert calls[-2][0] == Choices("photos", epochs=2)


@pytest.mark.parametrize(
    ("task", "head", "learned", "heads"),
    [
        ("classification", "auto", ("a", "b"), ["auto"]),
        ("classification", "auto", ("b", "a"), ["auto", "reset"]),
        ("classification", "auto", ("a", "c"), ["auto", "reset"]),
        ("classification", "auto", ("x", "y"), ["auto"]),  # numbers, or other names of the same classes
        ("classification", "auto", None, ["auto"]),
        ("classification", "keep", ("b", "a"), ["keep"]),
        ("classification", "reset", ("a", "b"), ["reset"]),
        ("regression", "auto", None, ["reset"]),
        ("regression", "keep", None, ["keep"]),
        ("segmentation", "auto", None, ["reset"]),
    ],
)
def test_a_head_of_other_classes_is_reset(task, head, learned, heads, tmp_path, monkeypatch):
    (tmp_path / "a.npz").touch()
    calls = []
    monkeypatch.setattr(training_run, "load_checkpoint", lambda model, path, head: calls.append((path, head)))
    path = str(tmp_path / "a.npz")
    recipe = recipes.Recipe(task=task, model=recipes.Model(weights=path, head=head))
    training_run.load_weights(types.SimpleNamespace(class_names=learned), recipe, ("a", "b"))
    assert calls == [(path, head) for head in heads]


def test_without_a_checkpoint_nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(training_run, "load_checkpoint", lambda *_, **__: pytest.fail("a checkpoint was loaded"))
    training_run.load_weights(types.SimpleNamespace(class_names=None), recipes.Recipe(), ("a", "b"))
