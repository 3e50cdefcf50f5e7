"""Accuracy after transfer over the size of the pre-training set: figures 3 and 4."""

import dataclasses
import functools
import os
from typing import Any

from benchmarks.paper import drawing, transfer
from benchmarks.paper.panel import Panel, Rows
from benchmarks.paper.statements import Statement, ahead, percent
from benchmarks.paper.study import VALIDATION, Stage, Study, best
from keras_vit import recipe as recipes
from keras_vit.runs import run_directory
from train.experiments.search import Grid

SHOTS = 10  # training images per class for the linear classifiers
SUBSETS = ("1%", "3%", "10%", "30%", "100%")
STEPS, FINETUNING_STEPS = 600, 100
RATES = {"ViT": 2e-3, "small ViT": 2e-3, "hybrid": 4e-3, "BiT": 4e-3}
# Weight decay and label smoothing, for weak and for strong regularization.
REGULARIZATION = ((0.1, 0.0), (0.5, 0.1))
FEW_SHOT = f"transfer/{SHOTS}shot"


def _recipe(study: Study, name: str) -> recipes.Recipe:
    models = {"ViT": study.vit(), "small ViT": study.vit(32, 4), "hybrid": study.hybrid(), "BiT": study.bit()}
    recipe = study.recipe(models[name], STEPS, RATES[name])
    recipe.data.source, recipe.data.train_split = f"npz:{transfer.path_of(study, 'pretraining')}", "train"
    from_transfer = f"source='npz:{transfer.path_of(study, 'transfer')}', train_split='train', split='test'"
    recipe.evaluators = (
        "classification(name='validation', split='validation')",
        f"fewshot(name='transfer', shots=({SHOTS},), {from_transfer})",
    )
    return recipe


def candidates(name: str, study: Study) -> Stage:
    """Return the pre-training runs of a model for each subset and regularization, with the first seed."""
    grid = [_setting(subset, regularization, [0]) for subset in SUBSETS for regularization in REGULARIZATION]
    return Stage(_directory(name, "pretraining"), _recipe(study, name), grid)


def pretrain(name: str, study: Study) -> Stage:
    """Return the pre-training runs with each subset's best regularization. Runs of `candidates` are not repeated."""
    grid = [
        _setting(subset, regularization, range(study.seeds)) for subset, regularization in chosen(study, name).items()
    ]
    return Stage(_directory(name, "pretraining"), _recipe(study, name), grid)


def finetune(name: str, study: Study) -> Stage:
    """Return the fine-tuning runs of all pre-trained models."""
    pretraining = pretrain(name, study)
    model = dataclasses.replace(pretraining.recipe.model, head="reset")
    recipe = study.recipe(model, FINETUNING_STEPS, RATES[name] / 4)
    recipe.data.source, recipe.data.train_split = f"npz:{transfer.path_of(study, 'transfer')}", "train"
    recipe.data.batch_size, recipe.evaluators = 64, ()
    grid: list[Grid] = [
        {"model.weights": [_model(path)], "seed": [pretrained.seed]}
        for path, pretrained in study.runs(pretraining).items()
    ]
    return Stage(_directory(name, "finetuning"), recipe, grid)


def _directory(name: str, stage: str) -> str:
    return f"subset_size/{name.replace(' ', '_')}/{stage}"


def _model(path: str) -> str:
    return os.path.join(path, run_directory.MODEL)


def _setting(subset: str, regularization: tuple[float, float], seeds: Any) -> dict[str, Any]:
    decay, smoothing = regularization
    fields = {"data.train_split": f"train[:{subset}]", "optim.weight_decay": decay, "label_smoothing": smoothing}
    return {**{field: [value] for field, value in fields.items()}, "seed": seeds}


def _subset(recipe: recipes.Recipe) -> str:
    return recipe.data.train_split.removeprefix("train[:").removesuffix("]")


def _regularization(recipe: recipes.Recipe) -> tuple[float, float]:
    return recipe.optim.weight_decay, recipe.label_smoothing


def chosen(study: Study, name: str) -> dict[str, tuple[float, float]]:
    """Return the regularization with the highest validation accuracy for each subset."""
    stage = candidates(name, study)
    scores = study.scores(stage, lambda recipe: (_subset(recipe), _regularization(recipe)), VALIDATION)
    return {subset: best({setting: scores[subset, setting] for setting in REGULARIZATION}) for subset in SUBSETS}


def results(study: Study) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return the accuracies by type of transfer, model and subset."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {"fine-tuned": {}, f"{SHOTS}-shot linear": {}}
    for name in RATES:
        pretraining, finetuning = pretrain(name, study), finetune(name, study)
        subsets = {_model(path): _subset(recipe) for path, recipe in study.runs(pretraining).items()}
        found[f"{SHOTS}-shot linear"][name] = study.scores(pretraining, _subset, FEW_SHOT)
        by_checkpoint = study.scores(finetuning, lambda recipe: recipe.model.weights)
        for path, values in by_checkpoint.items():
            found["fine-tuned"].setdefault(name, {}).setdefault(subsets[path], []).extend(values)
    return found


def _table(study: Study) -> Rows:
    rows = [
        [kind, name, *(percent(by_subset[subset]) for subset in SUBSETS)]
        for kind, by_name in results(study).items()
        for name, by_subset in by_name.items()
    ]
    return ["transfer", "model", *(f"{subset}:" for subset in SUBSETS)], rows


def _draw(study: Study) -> dict[str, Any]:
    axes = {
        kind: {
            name: {float(subset.rstrip("%")): values for subset, values in by_subset.items()}
            for name, by_subset in by_name.items()
        }
        for kind, by_name in results(study).items()
    }
    return {"subset_size": drawing.lines(axes, "pre-training images (%)", "accuracy after transfer (%)")}


def _statements(study: Study) -> list[Statement]:
    found = []
    for kind, by_name in results(study).items():
        smallest, largest = ({name: values[subset] for name, values in by_name.items()} for subset in ("1%", "100%"))
        found += [
            ahead("BiT", "ViT", smallest, f"with 1% of the images, {kind}"),
            ahead("ViT", "BiT", largest, f"with all images, {kind}"),
            ahead("ViT", "small ViT", largest, f"with all images, {kind}"),
        ]
    return found


PANEL = Panel(
    name="subset_size",
    title="Size of the pre-training set (figures 3 and 4)",
    claim="With a small pre-training set, ResNets transfer better than ViTs. With a large pre-training set, ViTs "
    "overtake ResNets, and larger ViTs are better than smaller ones.",
    setup="Models are pre-trained on parts of the images of five classes and transferred to the other five classes: "
    f"fine-tuned on {transfer.EXAMPLES} images per class, or used as features for linear classifiers with {SHOTS} "
    "images per class. Weight decay and label smoothing are chosen per model and subset on held-back images of the "
    "pre-training, as in the paper. All pre-training runs have the same number of steps.",
    stages=tuple(functools.partial(stage, name) for stage in (candidates, pretrain, finetune) for name in RATES),
    table=_table,
    draw=_draw,
    statements=_statements,
    prepare=transfer.prepare,
)
