"""Accuracy over training compute: figure 5."""

import math
from typing import Any

from benchmarks.paper import drawing
from benchmarks.paper.panel import Panel, Rows
from benchmarks.paper.statements import Statement, ahead, alike, percent
from benchmarks.paper.study import Stage, Study, operations
from keras_vit import recipe as recipes

STEPS = (150, 300, 600, 1_200)  # steps of the ViT, whose operations are the budgets of all models
RATES = {"ViT": 2e-3, "hybrid": 4e-3, "BiT": 4e-3}


def stage_of(name: str, study: Study) -> Stage:
    """Return the runs of a model, one per budget. The number of steps is the smallest that uses up the budget."""
    recipe = _recipe(name, study)
    cost = _cost_of_step(recipe)
    grid = [
        {"total_steps": [steps], "optim.schedule.warmup_steps": [steps // 10], "seed": range(study.seeds)}
        for steps in (math.ceil(budget / cost) for budget in budgets(study))
    ]
    return Stage(f"compute/{name}", recipe, grid)


def budgets(study: Study) -> tuple[int, ...]:
    """Return the budgets in operations. The budgets of a trial are multiples of its steps."""
    steps = STEPS if study.steps is None else [study.steps * 2**index for index in range(len(STEPS))]
    cost = _cost_of_step(_recipe("ViT", study))
    return tuple(count * cost for count in steps)


def _cost_of_step(recipe: recipes.Recipe) -> int:
    return operations(recipe) // recipe.total_steps


def _recipe(name: str, study: Study) -> recipes.Recipe:
    model = {"ViT": study.vit, "hybrid": study.hybrid, "BiT": study.bit}[name]()
    return study.recipe(model, STEPS[-1], RATES[name])


def vit(study: Study) -> Stage:
    """Return the runs of the ViT."""
    return stage_of("ViT", study)


def hybrid(study: Study) -> Stage:
    """Return the runs of the hybrid."""
    return stage_of("hybrid", study)


def bit(study: Study) -> Stage:
    """Return the runs of the BiT ResNet."""
    return stage_of("BiT", study)


def _steps(recipe: recipes.Recipe) -> int:
    return recipe.total_steps


def curves(study: Study) -> dict[str, dict[float, list[float]]]:
    """Return the accuracies of each model by operations."""
    found: dict[str, dict[float, list[float]]] = {}
    for name in RATES:
        stage = stage_of(name, study)
        costs = {_steps(recipe): operations(recipe) for recipe in stage.runs.values()}
        found[name] = {costs[steps]: values for steps, values in study.scores(stage, _steps).items()}
    return found


def _table(study: Study) -> Rows:
    rows = []
    for name in RATES:
        stage = stage_of(name, study)
        for budget, (steps, values) in zip(budgets(study), study.scores(stage, _steps).items(), strict=True):
            rows.append([name, f"{budget:.2g}", f"{steps:,}", percent(values)])
    return ["model", "operations:", "steps:", "accuracy:"], rows


def _draw(study: Study) -> dict[str, Any]:
    return {"compute": drawing.lines({"": curves(study)}, "operations of the training", "test accuracy (%)")}


def _statements(study: Study) -> list[Statement]:
    scores = {name: list(curve.values()) for name, curve in curves(study).items()}
    smallest, largest = ({name: values[index] for name, values in scores.items()} for index in (0, -1))
    first, last = (f"with {budgets(study)[index]:.2g} operations" for index in (0, -1))
    last_two = {name: largest[name] for name in ("hybrid", "ViT")}
    return [ahead("hybrid", "ViT", smallest, first), alike(last_two, last), ahead("ViT", "BiT", largest, last)]


PANEL = Panel(
    name="compute",
    title="Accuracy over training compute (figure 5)",
    claim="With the same compute, ViTs reach higher accuracies than ResNets. With little compute, hybrids are slightly "
    "better than ViTs; the difference vanishes with more compute.",
    setup="A ViT, a hybrid and a BiT ResNet are trained from scratch with the same four budgets of operations. The "
    "paper compares models of many sizes after transfer to five data sets.",
    stages=(vit, hybrid, bit),
    table=_table,
    draw=_draw,
    statements=_statements,
)
