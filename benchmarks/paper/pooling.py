"""Class token or mean pooling: appendix D.3, figure 9."""

from typing import Any

from benchmarks.paper import drawing
from benchmarks.paper.panel import Panel, Rows
from benchmarks.paper.statements import Statement, alike, percent
from benchmarks.paper.study import Stage, Study
from keras_vit import recipe as recipes

STEPS = 800
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
POOLINGS = {"token": "class token", "gap": "mean pooling"}


def train(study: Study) -> Stage:
    """Return the training runs with each pooling and rate."""
    grid = {"model.arguments.pooling": list(POOLINGS), "optim.learning_rate": RATES, "seed": range(study.seeds)}
    return Stage("pooling", study.recipe(study.vit(), STEPS, RATES[0]), [grid])


def setting_of(recipe: recipes.Recipe) -> tuple[str, float]:
    """Return the pooling and the rate of a recipe."""
    return POOLINGS[recipe.model.arguments["pooling"]], recipe.optim.learning_rate


def _table(study: Study) -> Rows:
    scores = study.scores(train(study), setting_of)
    rows = [[name, *(percent(scores[name, rate]) for rate in RATES)] for name in POOLINGS.values()]
    return ["pooling", *(f"rate {rate:g}:" for rate in RATES)], rows


def _draw(study: Study) -> dict[str, Any]:
    scores = study.scores(train(study), setting_of)
    lines = {name: {rate: scores[name, rate] for rate in RATES} for name in POOLINGS.values()}
    return {"pooling": drawing.lines({"": lines}, "peak learning rate", "test accuracy (%)")}


def _statements(study: Study) -> list[Statement]:
    scores, rates = study.scores(train(study), setting_of), study.best_rates(train(study), setting_of)
    at_best = {name: scores[name, rate] for name, rate in rates.items()}
    token, mean = POOLINGS.values()
    text = f"{mean} needs a smaller rate than the {token}: the best rates are {rates[mean]:g} and "
    return [
        alike(at_best, "at the best rate of each"),
        Statement(f"{text}{rates[token]:g}", rates[mean] < rates[token]),
    ]


PANEL = Panel(
    name="pooling",
    title="Class token or mean pooling (appendix D.3, figure 9)",
    claim="A class token and the mean over the patches work similarly well, but need different learning rates: the "
    "mean needs a smaller rate.",
    setup="A ViT is trained from scratch with each pooling at five rates. The best rate is chosen on 5% of "
    "the training images, which are held back.",
    stages=(train,),
    table=_table,
    draw=_draw,
    statements=_statements,
)
