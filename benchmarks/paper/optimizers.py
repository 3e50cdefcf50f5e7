"""Adam or SGD for ResNets: appendix D.1, table 7."""

from typing import Any

from benchmarks.paper import drawing, published
from benchmarks.paper.panel import Panel, Rows
from benchmarks.paper.statements import Statement, ahead, percent
from benchmarks.paper.study import Stage, Study
from keras_vit import recipe as recipes
from train.experiments.search import Grid

STEPS = 600
RATES = {"Adam": (1e-3, 3e-3, 1e-2, 3e-2), "SGD": (3e-2, 1e-1, 3e-1, 1.0)}
DECAY = 1e-4  # weight decay per step at the peak rate, for both optimizers


def train(study: Study) -> Stage:
    """Return the training runs of a BiT ResNet with each optimizer and rate."""
    grid: list[Grid] = [
        {
            "optim.name": [_field(name)],
            "optim.learning_rate": [rate],
            "optim.weight_decay": [DECAY / rate],
            "seed": range(study.seeds),
        }
        for name, rates in RATES.items()
        for rate in rates
    ]
    return Stage("optimizers", study.recipe(study.bit(), STEPS, RATES["Adam"][0]), grid)


def _field(name: str) -> str:
    return "adamw" if name == "Adam" else "sgd"


def setting_of(recipe: recipes.Recipe) -> tuple[str, float]:
    """Return the optimizer and the rate of a recipe."""
    return "SGD" if recipe.optim.name == "sgd" else "Adam", recipe.optim.learning_rate


def _table(study: Study) -> Rows:
    scores = study.scores(train(study), setting_of)
    rows = [
        [name, f"{rate:g}", percent(scores[name, rate]), published.value("optimizers", name)]
        for name, rates in RATES.items()
        for rate in rates
    ]
    return ["optimizer", "rate:", "accuracy:", "published, ResNet50, mean of five data sets:"], rows


def _draw(study: Study) -> dict[str, Any]:
    scores = {
        f"{name}, rate {rate:g}": values for (name, rate), values in study.scores(train(study), setting_of).items()
    }
    return {"optimizers": drawing.dots(scores, "test accuracy (%)")}


def _statements(study: Study) -> list[Statement]:
    scores = study.scores(train(study), setting_of)
    rates = study.best_rates(train(study), setting_of)
    at_best = {name: scores[name, rate] for name, rate in rates.items()}
    return [ahead("Adam", "SGD", at_best, f"at the best rate of each ({rates['Adam']:g} and {rates['SGD']:g})")]


PANEL = Panel(
    name="optimizers",
    title="Adam or SGD for ResNets (appendix D.1, table 7)",
    claim="ResNets that are pre-trained with Adam transfer better than ResNets that are pre-trained with SGD.",
    setup="A BiT ResNet is trained from scratch with each optimizer at four rates, with the same weight decay per "
    "step. The best rate is chosen on 5% of the training images, which are held back. The paper compares "
    "the accuracy after transfer.",
    stages=(train,),
    table=_table,
    draw=_draw,
    statements=_statements,
)
