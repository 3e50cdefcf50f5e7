"""Depth, width, MLP and patch size: appendix D.2, figure 8."""

from typing import Any

from benchmarks.paper import drawing
from benchmarks.paper.panel import Panel, Rows
from benchmarks.paper.statements import Statement, ahead, percent
from benchmarks.paper.study import Stage, Study, operations
from keras_vit import recipe as recipes
from keras_vit.training.planning import plan

STEPS, RATE = 600, 2e-3
FIELDS = {"num_layers": "depth", "hidden_size": "width", "mlp_dim": "MLP", "patch_size": "patch size"}
BASE = {"num_layers": 4, "hidden_size": 64, "mlp_dim": 128}
SMALL = {"num_layers": 2, "hidden_size": 32, "mlp_dim": 64}
LARGE = {"num_layers": 8, "hidden_size": 128, "mlp_dim": 512}


def train(study: Study) -> Stage:
    """Return the training runs of the base model and of models that differ from the base model in one dimension."""
    coarse, patch, fine = study.images.patches
    base: dict[str, int] = {**BASE, "patch_size": patch}
    changes: list[dict[str, int]] = [{}, {"patch_size": coarse}, {"patch_size": fine}]
    for field in BASE:
        changes += [{field: SMALL[field]}, {field: LARGE[field]}]
    grid = [
        {
            **{f"model.arguments.{name}": [value] for name, value in {**base, **change}.items()},
            "seed": range(study.seeds),
        }
        for change in changes
    ]
    return Stage("scaling", study.recipe(study.vit(), STEPS, RATE), grid)


def name_of(recipe: recipes.Recipe) -> tuple[int, ...]:
    """Return the depth, width, MLP width and patch size of a recipe's model."""
    return tuple(recipe.model.arguments[name] for name in FIELDS)


def curves(study: Study) -> dict[str, dict[float, list[float]]]:
    """Return the accuracies by operations per image for each scaled dimension."""
    stage = train(study)
    scores = study.scores(stage, name_of)
    macs = {name_of(recipe): operations(recipe) / recipe.total_steps for recipe in stage.runs.values()}
    base = next(iter(scores))
    found = {}
    for index, title in enumerate(FIELDS.values()):
        others = [name for name in scores if name[:index] + name[index + 1 :] == base[:index] + base[index + 1 :]]
        found[title] = {macs[name]: scores[name] for name in sorted(others, key=lambda name: macs[name])}
    return found


def _table(study: Study) -> Rows:
    stage = train(study)
    models = {name_of(recipe): recipe for recipe in stage.runs.values()}
    rows = []
    for name, values in study.scores(stage, name_of).items():
        cost = plan.model_cost(models[name], classes=10, channels=1)
        rows.append([*name, f"{cost.parameters:,}", f"{cost.macs / 1e6:.1f}", percent(values)])
    return [*(f"{title}:" for title in FIELDS.values()), "parameters:", "multiply-adds (M):", "accuracy:"], rows


def _draw(study: Study) -> dict[str, Any]:
    return {"scaling": drawing.lines({"": curves(study)}, "operations per step", "test accuracy (%)")}


def _statements(study: Study) -> list[Statement]:
    found = {title: list(curve.values()) for title, curve in curves(study).items()}  # in increasing order of operations
    deep, fine = found["depth"], found["patch size"]
    scores = {
        f"a depth of {LARGE['num_layers']}": deep[-1],
        f"a depth of {SMALL['num_layers']}": deep[0],
        f"a patch size of {study.images.patches[2]}": fine[-1],
        f"a patch size of {study.images.patches[0]}": fine[0],
        f"a width of {LARGE['hidden_size']}": found["width"][-1],
    }
    (large, small, fine_name, coarse_name, wide) = scores
    return [ahead(large, small, scores), ahead(fine_name, coarse_name, scores), ahead(large, wide, scores)]


PANEL = Panel(
    name="scaling",
    title="Depth, width, MLP and patch size (appendix D.2, figure 8)",
    claim="Scaling the depth improves the most. Scaling the width has the smallest effect. Smaller patches improve the "
    "accuracy without more parameters.",
    setup="A base model and models that differ from the base model in one dimension are trained from scratch."
    " The paper plots the accuracy after transfer over the compute.",
    stages=(train,),
    table=_table,
    draw=_draw,
    statements=_statements,
)
