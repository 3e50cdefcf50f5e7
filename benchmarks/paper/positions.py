"""Position embeddings: appendix D.4, table 8."""

from typing import Any

from benchmarks.paper import drawing, published
from benchmarks.paper.panel import Panel, Rows
from benchmarks.paper.statements import Statement, ahead, alike, percent
from benchmarks.paper.study import Stage, Study
from keras_vit import recipe as recipes

STEPS, RATE = 800, 2e-3
KINDS = {"none": "none", "learned": "1-D", "learned2d": "2-D", "relative": "relative"}
PLACES = {"input": "at the input", "every_layer": "in every layer", "every_layer_shared": "in every layer, shared"}
NONE, ONE_D = "none", "1-D at the input"


def train(study: Study) -> Stage:
    """Return the training runs with each position embedding of table 8."""
    field = "model.arguments.position_embedding"
    seeds = range(study.seeds)
    grid = [
        {field: ["none", "learned", "learned2d", "relative"], "seed": seeds},
        {field: ["learned", "learned2d"], f"{field}_at": ["every_layer", "every_layer_shared"], "seed": seeds},
    ]
    return Stage("positions", study.recipe(study.vit(), STEPS, RATE), grid)


def train_1d(study: Study) -> Stage:
    """Return only the training runs with a 1-D embedding at the input."""
    stage = train(study)
    grid = {"model.arguments.position_embedding": ["learned"], "seed": range(study.seeds)}
    return Stage(stage.name, stage.recipe, [grid])


def name_of(recipe: recipes.Recipe) -> str:
    """Return the name of an embedding, such as `"1-D at the input"`."""
    found = recipe.model.arguments
    kind = KINDS[found["position_embedding"]]
    return kind if kind == NONE else f"{kind} {PLACES[found.get('position_embedding_at', 'input')]}"


def _table(study: Study) -> Rows:
    rows = [
        [name, percent(values), published.value("positions", name)]
        for name, values in study.scores(train(study), name_of).items()
    ]
    return ["position embedding", "accuracy:", "published, ImageNet 5-shot:"], rows


def _draw(study: Study) -> dict[str, Any]:
    return {"positions": drawing.dots(study.scores(train(study), name_of), "test accuracy (%)")}


def _statements(study: Study) -> list[Statement]:
    scores = study.scores(train(study), name_of)
    with_positions = {name: values for name, values in scores.items() if name != NONE}
    return [ahead(ONE_D, NONE, scores), alike(with_positions, together="Models with position embeddings")]


PANEL = Panel(
    name="positions",
    title="Position embeddings (appendix D.4, table 8)",
    claim="A model without position embeddings is clearly worse. How and where the positions are added matters little.",
    setup="A ViT is trained from scratch with each kind of embedding. The paper measures 5-shot accuracy on ImageNet "
    "after pre-training on JFT-300M.",
    stages=(train,),
    table=_table,
    draw=_draw,
    statements=_statements,
)
