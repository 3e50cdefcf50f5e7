"""The paper's experiments in miniature: runs, statements and document. Results are written, not trained."""

import itertools
import json
import pathlib

import numpy as np
import pytest

from benchmarks import paper
from benchmarks.paper import (
    attention,
    compute,
    document,
    drawing,
    positions,
    running,
    statements,
    subset_size,
    transfer,
)
from benchmarks.paper.study import TEST, VALIDATION, best, operations
from keras_vit import data
from keras_vit import recipe as recipes
from keras_vit.data.readers import idx
from tests import programs, tiny
from train.experiments import search

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "paper.md"


@pytest.fixture
def study(tmp_path):
    return paper.Study(str(tmp_path / "runs"), "digits", seeds=2)


def finish(path, accuracy):
    """Write the files of a finished run with an accuracy."""
    path = pathlib.Path(path)
    path.mkdir(parents=True, exist_ok=True)
    line = {"step": 1, **dict.fromkeys((TEST, VALIDATION, subset_size.FEW_SHOT), accuracy), "eval_loss": 1.0}
    (path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (path / "model.keras").touch()


def finish_all(study, panel, score):
    """Finish the runs of a panel, each with the accuracy that a function gives for its recipe."""
    for make in panel.stages:
        for path, recipe in study.runs(make(study)).items():
            finish(path, score(recipe) + 0.001 * recipe.seed)


# ---- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("source", paper.DATA_SETS)
def test_all_runs_have_valid_recipes(source, tmp_path):
    study = paper.Study(str(tmp_path), source)
    for panel in paper.PANELS.values():
        runs = panel.runs(study)  # `expand` checks each
        assert runs and all(recipe.seed < 3 for recipe in runs.values())
        assert {recipe.seed for recipe in runs.values()} == {0, 1, 2}
        assert paper.total_operations(runs) > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_all_runs_take_at_most_twelve_hours(tmp_path):
    runs = {}
    for panel in paper.PANELS.values():
        runs |= panel.runs(paper.Study(str(tmp_path)))
    assert 6 < paper.hours_left(runs) <= 12


@pytest.mark.slow
def test_finished_runs_cost_nothing(study):
    runs = positions.PANEL.runs(study)
    before = paper.hours_left(runs)
    finish(next(iter(runs)), 0.5)
    assert paper.count(runs) == (1, 16)
    assert paper.hours_left(runs) == pytest.approx(before * 15 / 16, rel=0.02)  # embeddings differ in operations


@pytest.mark.parametrize("source", paper.DATA_SETS)
@pytest.mark.parametrize("kind", ["vit", "hybrid", "bit"])
def test_models_can_be_built(kind, source):
    study = paper.Study("runs", source)
    recipe = study.recipe(getattr(study, kind)(), steps=10, rate=1e-3)
    assert recipes.describe_model(recipe, classes=10, channels=1).output_shape == (None, 10)


@pytest.mark.slow
def test_trial_replaces_the_numbers_of_steps():
    trial = paper.Study("runs", "digits", seeds=1, steps=3)
    found = {name: {r.total_steps for r in panel.runs(trial).values()} for name, panel in paper.PANELS.items()}
    # Those of the ViT, and of BiT and hybrid, whose steps are cheaper on so small images
    assert found.pop("compute") == {3, 6, 12, 24} | {7, 14, 28, 56} | {9, 18, 35, 70}
    assert set().union(*found.values()) == {3}


@pytest.mark.parametrize("source", paper.DATA_SETS)
@pytest.mark.parametrize("steps", [None, 1])
def test_budgets_are_the_same_for_all_models(source, steps):
    """Each is used up, and one step fewer would not do so."""
    study = paper.Study("runs", source, steps=steps)
    for name in compute.RATES:
        recipes_of_seed = [recipe for recipe in compute.stage_of(name, study).runs.values() if recipe.seed == 0]
        for recipe, budget in zip(recipes_of_seed, compute.budgets(study), strict=True):
            cost = operations(recipe)
            assert cost - cost // recipe.total_steps < budget <= cost


@pytest.mark.slow
def test_a_panel_is_run_once_and_resumed(study, monkeypatch):
    started = []

    def sweep(recipe, grid, workdir, **options):
        for name in search.expand(recipe, grid):
            path = pathlib.Path(workdir) / "runs" / name
            if not (path / "model.keras").exists() and len(started) < limit:
                started.append(str(path))
                finish(path, 0.5)

    monkeypatch.setattr(running, "sweep", sweep)
    limit = 5
    assert not paper.run(study, positions.PANEL)
    limit = 100
    assert paper.run(study, positions.PANEL) and paper.run(study, attention.PANEL)
    assert len(started) == len(set(started)) == 16


# ---- pre-training and transfer ---------------------------------------------------------------------------------------


def test_pretraining_and_transfer_data_share_no_class(study):
    transfer.prepare(study)
    opened = {
        name: {split: data.open_source(f"npz:{transfer.path_of(study, name)}", split=split) for split in splits}
        for name, splits in {"pretraining": ("train", "validation", "test"), "transfer": ("train", "test")}.items()
    }
    first, second = (found["train"].class_names for found in opened.values())
    assert set(first) | set(second) == set(map(str, range(10))) and not set(first) & set(second)
    for name, found in opened.items():
        for split, source in found.items():
            original = data.open_source("digits", split="test" if split == "test" else "train")
            classes = np.array([int(text) for text in source.class_names])
            known = {(image.tobytes(), label) for image, label in zip(original.images, original.labels(), strict=True)}
            labels = classes[source.labels()]
            assert {(i.tobytes(), label) for i, label in zip(source.images, labels, strict=True)} <= known, (
                name,
                split,
            )
    counts = np.bincount(opened["transfer"]["train"].labels())
    assert counts.tolist() == [transfer.EXAMPLES] * 5
    train, held_back = (opened["pretraining"][split].num_examples for split in ("train", "validation"))
    assert held_back == (train + held_back) // 20


@pytest.mark.slow
def test_the_best_regularization_is_pretrained_and_finetuned(study):
    little, much = subset_size.REGULARIZATION

    def score(recipe):
        with_much = (recipe.optim.weight_decay, recipe.label_smoothing) == much
        return 0.5 + 0.1 * (with_much == (recipe.data.train_split == "train[:1%]"))

    finish_all(study, subset_size.PANEL, score)
    assert subset_size.chosen(study, "BiT") == dict.fromkeys(subset_size.SUBSETS, little) | {"1%": much}
    pretraining = study.runs(subset_size.pretrain("BiT", study))
    assert len(pretraining) == 10 and all(score(recipe) == 0.6 for recipe in pretraining.values())
    checkpoints = {r.model.weights for r in study.runs(subset_size.finetune("BiT", study)).values()}
    assert checkpoints == {f"{path}/model.keras" for path in pretraining}


# ---- statements ------------------------------------------------------------------------------------------------------


def test_a_model_is_ahead_only_by_a_significant_difference():
    scores = {"a": [0.90, 0.92, 0.94], "b": [0.89, 0.91, 0.93], "c": [0.80, 0.82, 0.84]}
    assert statements.ahead("a", "c", scores).holds  # t = 6.1 at 4 degrees of freedom
    assert not statements.ahead("a", "b", scores).holds  # t = 0.6
    assert not statements.ahead("c", "a", scores).holds
    equal = {"a": [0.9, 0.9], "b": [0.9, 0.9], "c": [0.8, 0.8]}
    assert statements.ahead("a", "c", equal).holds and not statements.ahead("a", "b", equal).holds


def test_significance_test_does_not_assume_equal_variances():
    """Two runs that differ by 10 points, and ten that agree. Pooled, they would differ at t = 2.9 and p = 0.008."""
    scores = {"few": [0.80, 0.90], "many": [0.799, 0.801] * 5}
    assert not statements.ahead("few", "many", scores).holds  # Welch: t = 1.0 at 1 degree of freedom
    assert statements.ahead("few", "many", {**scores, "few": [0.849, 0.851]}).holds


def test_accuracies_within_one_point_count_as_equal():
    assert statements.alike({"a": [0.90], "b": [0.909], "c": [0.905]}).holds
    assert not statements.alike({"a": [0.90], "b": [0.911], "c": [0.905]}).holds


@pytest.mark.parametrize(("holding", "outcome"), [(0, "Does not reproduce"), (1, "in part"), (2, "Reproduces at")])
def test_summary_counts_the_statements_that_hold(holding, outcome):
    text = statements.summary([statements.Statement(f"Statement {index}", index < holding) for index in range(2)])
    assert outcome in text and f"{holding} of 2" in text and text.count("does not hold") == 2 - holding


def test_best_of_settings_without_results_is_the_first():
    assert best({"a": [], "b": []}) == "a"
    assert best({"a": [], "b": [0.1], "c": [0.2, 0.4]}) == "c"


CLAIMS = {  # accuracies that make all statements of a panel hold
    "positions": lambda r: 0.6 if r.model.arguments["position_embedding"] == "none" else 0.7,
    "pooling": lambda r: (
        0.7 + 0.1 * (r.optim.learning_rate == (1e-3 if r.model.arguments["pooling"] == "gap" else 4e-3))
    ),
    "optimizers": lambda r: 0.8 if r.optim.name == "adamw" else 0.7,
    "scaling": lambda r: (
        0.7
        + 0.05 * r.model.arguments["num_layers"]
        - 0.05 * r.model.arguments["patch_size"]
        + 0.0001 * r.model.arguments["hidden_size"]
    ),
    "compute": lambda r: {"ViT-Ti/16": 0.5, "R+ViT-Ti/16": 0.6 if r.total_steps < 400 else 0.5}.get(
        r.model.variant, 0.4
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_claims_reproduce_if_the_numbers_support_them(name, study):
    panel, score = paper.PANELS[name], CLAIMS[name]
    finish_all(study, panel, score)
    assert [statement.text for statement in panel.statements(study) if not statement.holds] == []
    finish_all(study, panel, lambda recipe: -score(recipe))
    assert not all(statement.holds for statement in panel.statements(study))


@pytest.mark.slow
def test_claims_on_the_size_of_the_pretraining_set_are_checked(study):
    subsets = {}

    def score(recipe):
        large = recipe.model.arguments.get("hidden_size", 0) / 1000
        if recipe.model.variant == "BiT-R50x1":
            return 0.6
        if recipe.model.weights and not subsets:  # the pre-training runs are finished
            runs = subset_size.PANEL.runs(study).items()
            subsets.update({f"{path}/model.keras": r.data.train_split for path, r in runs})
        subset = subsets.get(recipe.model.weights, recipe.data.train_split)
        return (0.4 if subset == "train[:1%]" else 0.7) + large

    finish_all(study, subset_size.PANEL, score)
    found = subset_size.PANEL.statements(study)
    assert [statement.text for statement in found if not statement.holds] == [] and len(found) == 6


# ---- the document ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_document_lists_missing_runs(study, tmp_path):
    path = document.write(study, paper.PANELS, str(tmp_path / "docs"))
    text = pathlib.Path(path).read_text()
    assert text.count("**Not run yet:** 0 of") == len(paper.PANELS)
    assert "hold.**" not in text and "<picture>" not in text
    for panel in paper.PANELS.values():
        assert panel.title in text and panel.claim in text
    assert "88.55 ± 0.04" in text
    assert "peak rates 0.001, 0.003, 0.01, 0.03, 0.1, 0.3" in text
    assert "150, 300, 349, 433, 600, 698, 866, 1,200, 1,396, 1,731, 2,791, 3,462 steps of 128" in text
    assert "`BiT-R50x1` (`block_sizes=(1, 1)`)" in text


@pytest.mark.slow
def test_document_states_finished_and_incomplete_panels(study, tmp_path):
    pytest.importorskip("matplotlib")
    finish_all(study, paper.PANELS["pooling"], CLAIMS["pooling"])
    for path in itertools.islice(paper.PANELS["positions"].runs(study), 4):
        finish(path, 0.5)
    folder = tmp_path / "docs"
    document.write(study, {name: paper.PANELS[name] for name in ("pooling", "positions")}, str(folder))
    text = (folder / "paper.md").read_text()
    assert "**Reproduces at this size: 2 of 2 statements hold.**" in text
    assert "| mean pooling | 80.05 ± 0.07% | 70.05 ± 0.07% |" in text
    assert "**Not complete:** 4 of 16 runs are finished" in text
    for scheme, color in (("light", "#1f2328"), ("dark", "#e6edf3")):
        file = folder / "figures" / f"paper_pooling_{scheme}.svg"
        drawn = file.read_text()
        assert f"figures/{file.name}" in text and drawn.startswith("<?xml")
        assert "test accuracy (%)" in drawn and f"fill: {color}" in drawn
    finish_all(study, paper.PANELS["positions"], CLAIMS["positions"])
    document.write(study, {"positions": paper.PANELS["positions"]}, str(folder))
    text = (folder / "paper.md").read_text()
    assert "Not complete" not in text and text.count("2 of 2 statements hold") == 2
    assert "| none | 60.05 ± 0.07% | 61.38 |" in text


@pytest.mark.parametrize(
    ("values", "labels"),
    [((0.5, 1, 4), ["0.5", "1", "4"]), (range(9, 73, 9), ["10", "20", "50"])],
    ids=["few", "many"],
)
def test_labels_of_a_logarithmic_axis_are_plain_numbers(values, labels):
    pytest.importorskip("matplotlib")
    figure = drawing.lines({"": {"ViT": {value: [0.1, 0.2] for value in values}}}, "images", "accuracy")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    major = [tick.label1.get_text() for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert (major, axes.xaxis.get_minor_ticks()) == (labels, [])


@pytest.mark.slow
def test_nothing_is_concluded_from_one_seed(tmp_path):
    pytest.importorskip("matplotlib")
    study = paper.Study(str(tmp_path), "digits", seeds=1)
    finish_all(study, paper.PANELS["optimizers"], CLAIMS["optimizers"])
    text = document.section(study, paper.PANELS["optimizers"], str(tmp_path / "figures"))
    assert "**One seed:**" in text and "hold.**" not in text


@pytest.mark.slow
def test_attention_figures_are_drawn_from_trained_models(study, tmp_path):
    pytest.importorskip("matplotlib")
    for path, recipe in attention.PANEL.runs(study).items():
        tiny.write_digits_run(
            pathlib.Path(path),
            seed=recipe.seed,
            patch_size=2,
            num_layers=2,
            pooling="token",
            position_embedding="learned",
        )
    text = document.section(study, attention.PANEL, str(tmp_path / "figures"))
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {f"paper_{name}_dark.svg" for name in ("filters", "similarity", "distance", "attention")} < drawn
    assert "of 3 statements hold" in text and "| 1 |" in text


def test_near_and_far_similarity_matches_hand_computation():
    y, x = np.mgrid[:3, :3].reshape(2, -1)
    matrix = np.where((y[:, None] == y) | (x[:, None] == x), 0.5, 0.1)
    np.fill_diagonal(matrix, 1.0)
    found = attention.Found(np.zeros(1), matrix.reshape(3, 3, 3, 3), np.zeros((1, 1)), np.zeros(1))
    assert found.near_and_far == pytest.approx((0.5, 0.1))


def test_page_has_a_section_for_every_panel():
    text = PAGE.read_text(encoding="utf-8")
    for name in (*paper.PANELS, document.PUBLISHED):
        assert text.count(f"<!-- {name} -->") == text.count(f"<!-- /{name} -->") == 1


class TestProgram:
    @pytest.mark.slow
    def test_list_shows_finished_runs_without_starting_any(self, tmp_path, capsys):
        arguments = ["--list", "--source=digits", "--only=pooling", "--only=positions", f"--workdir={tmp_path}"]
        assert programs.call("benchmarks.paper.main", *arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:2] for line in lines[1:3]] == [["pooling", "0/30"], ["positions", "0/24"]]
        assert lines[-1].startswith("0 of 54 runs are finished.") and not list(tmp_path.iterdir())

    def test_wrong_flags_are_refused(self, tmp_path):
        for argument in ("--only=figure", "--source=cifar10"):
            with pytest.raises(ValueError, match=argument.partition("=")[0]):
                programs.call("benchmarks.paper.main", argument, f"--workdir={tmp_path}")

    def test_missing_data_are_reported_before_the_first_run(self, tmp_path, monkeypatch):
        pytest.importorskip("matplotlib")
        monkeypatch.setattr(idx, "FASHION_MNIST_FOLDER", str(tmp_path / "none"))
        monkeypatch.setattr(running, "sweep", lambda *arguments, **options: pytest.fail("A run was started."))
        with pytest.raises(FileNotFoundError, match="sudo apt-get install dataset-fashion-mnist"):
            programs.call("benchmarks.paper.main", f"--workdir={tmp_path}/runs")

    @pytest.mark.slow
    def test_program_runs_panels_and_writes_the_document(self, tmp_path, capsys, monkeypatch):
        pytest.importorskip("matplotlib")

        def sweep(recipe, grid, workdir, **options):
            for name in search.expand(recipe, grid):
                finish(pathlib.Path(workdir) / "runs" / name, 0.5)

        monkeypatch.setattr(running, "sweep", sweep)
        arguments = ["--source=digits", "--only=optimizers", f"--workdir={tmp_path}/runs", f"--output={tmp_path}/docs"]
        assert programs.call("benchmarks.paper.main", *arguments) == 0
        assert capsys.readouterr().out == f"{tmp_path}/docs/paper.md\n"
        text = (tmp_path / "docs" / "paper.md").read_text()
        assert "Does not reproduce at this size: 0 of 1 statements hold." in text  # all accuracies are the same
        assert "**Not run yet:**" in text
