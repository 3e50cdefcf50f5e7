"""Study: the data set, the models and the training settings that all panels share."""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from keras_vit import recipe as recipes
from keras_vit.runs.run_directory import is_finished
from keras_vit.training.planning import plan
from train.experiments.runs import RUNS, final_metrics
from train.experiments.search import Grid, expand

BATCH = 128
VALIDATION = "validation/accuracy"  # on held-back training images, used to choose settings
TEST = "eval_accuracy"


@dataclasses.dataclass(frozen=True)
class Images:
    """Properties of a data set.

    Attributes:
        size: Height and width in pixels.
        patches: Patch sizes of the scaling study, coarse to fine. All other models use the patch size in the middle.
        augmentation: Beginning of the preprocessing string of training images.
    """

    size: int
    patches: tuple[int, int, int]
    augmentation: str


DATA_SETS = {
    "fashion_mnist": Images(28, (7, 4, 2), "pad(1)|random_crop(28)|flip_lr|"),
    "digits": Images(8, (4, 2, 1), "inception_crop(8, 70)|"),
}


@dataclasses.dataclass(frozen=True)
class Stage:
    """Sweep of runs that do not depend on each other.

    Attributes:
        name: Name of the sweep's directory.
        recipe: Recipe with the values of all fields that are not swept.
        grid: Values by field, as in `train.experiments.sweep`.
    """

    name: str
    recipe: recipes.Recipe
    grid: Sequence[Grid]

    @functools.cached_property
    def runs(self) -> dict[str, recipes.Recipe]:
        """Recipes of the runs by name."""
        settings = expand(self.recipe, self.grid)
        return {name: recipes.replace(self.recipe, values) for name, values in settings.items()}


@dataclasses.dataclass(frozen=True)
class Study:
    """Miniatures of the paper's experiments on a data set of grayscale images.

    Attributes:
        workdir: Directory for all runs.
        source: Name of the data set, `"fashion_mnist"` or `"digits"`.
        seeds: Number of seeds per setting.
        steps: Number of steps of every run, for a trial; None for the numbers of the panels.

    Example:
    >>> study = Study("runs/paper", source="digits")
    >>> study.recipe(study.vit(), steps=100, rate=1e-3).model.image_size
    8
    """

    workdir: str
    source: str = "fashion_mnist"
    seeds: int = 3
    steps: int | None = None

    @property
    def images(self) -> Images:
        """Properties of the data set."""
        return DATA_SETS[self.source]

    # ---- recipes -----------------------------------------------------------------------------------------------------

    def vit(self, width: int = 64, layers: int = 4, **arguments: Any) -> recipes.Model:
        """Return a ViT with a class token and learned position embeddings, as in the paper."""
        sizes = {
            "patch_size": self.images.patches[1],
            "hidden_size": width,
            "num_layers": layers,
            "num_heads": 4,
            "mlp_dim": 2 * width,
        }
        fixed = {"pooling": "token", "position_embedding": "learned"}
        return recipes.Model("ViT-Ti/16", self.images.size, arguments={**sizes, **fixed, **arguments})

    def hybrid(self) -> recipes.Model:
        """Return a ViT on the feature map of a ResNet with the root and two units."""
        model = self.vit(layers=2, patch_size=1, resnet_blocks=(2,))
        return dataclasses.replace(model, variant="R+ViT-Ti/16")

    def bit(self) -> recipes.Model:
        """Return a BiT ResNet with the root and two units."""
        return recipes.Model("BiT-R50x1", self.images.size, arguments={"block_sizes": (1, 1)})

    def recipe(self, model: recipes.Model, steps: int, rate: float, **fields: Any) -> recipes.Recipe:
        """Return the recipe that all panels share: Adam with decoupled weight decay, a cosine schedule, no dropout.

        Args:
            model: The model.
            steps: Number of steps.
            rate: Peak learning rate.
            **fields: Additional fields of the recipe.
        """
        steps = self.steps or steps
        scaled = "value_range(-1, 1)"
        defaults: dict[str, Any] = {
            "total_steps": steps,
            "log_every": 100,
            "checkpoint_every": 0,
            "keep_checkpoints": 1,
            "evaluators": ("classification(name='validation', split='train[95%:]')",),
            "model": model,
            "data": recipes.Data(
                self.source,
                train_split="train[:95%]",
                pp_train=f"{self.images.augmentation}{scaled}",
                pp_eval=scaled,
                batch_size=BATCH,
                eval_batch_size=500,
            ),
            "optim": recipes.Optim(
                "adamw", rate, recipes.Schedule("cosine", warmup_steps=steps // 10), weight_decay=0.1, clip_norm=1.0
            ),
        }
        return recipes.Recipe(**{**defaults, **fields})

    # ---- results -----------------------------------------------------------------------------------------------------

    def directory(self, stage: Stage) -> str:
        """Return the sweep directory of a stage."""
        return os.path.join(self.workdir, stage.name)

    def runs(self, stage: Stage) -> dict[str, recipes.Recipe]:
        """Return the recipes of a stage by run directory."""
        return {os.path.join(self.directory(stage), RUNS, name): recipe for name, recipe in stage.runs.items()}

    def scores(self, stage: Stage, key: Callable[[recipes.Recipe], Any], metric: str = TEST) -> dict[Any, list[float]]:
        """Return the values of a metric for each setting, one value per seed.

        Args:
            stage: The runs.
            key: Function that maps a recipe to the value that distinguishes the settings.
            metric: Metric of the evaluations. Its last value is used.

        Returns:
            Lists of values by key, in the order of the runs. Values of unfinished runs are missing.
        """
        found: dict[Any, list[float]] = {}
        for path, recipe in self.runs(stage).items():
            values = found.setdefault(key(recipe), [])
            if is_finished(path):
                values.append(final_metrics(path)[metric])
        return found

    def best_rates(self, stage: Stage, setting_of: Callable[[recipes.Recipe], tuple[str, float]]) -> dict[str, float]:
        """Return the learning rate with the highest validation accuracy for each name.

        Args:
            stage: The runs.
            setting_of: Function that maps a recipe to its name and rate.
        """
        by_name: dict[str, dict[float, list[float]]] = {}
        for (name, rate), values in self.scores(stage, setting_of, VALIDATION).items():
            by_name.setdefault(name, {})[rate] = values
        return {name: best(scores) for name, scores in by_name.items()}


def operations(recipe: recipes.Recipe) -> int:
    """Return the floating-point operations of a training run on grayscale images of ten classes."""
    return plan.of_recipe(recipe, classes=10, channels=1).total_flops


def argument(name: str) -> Callable[[recipes.Recipe], Any]:
    """Return a function that maps a recipe to an argument of its model."""
    return lambda recipe: recipe.model.arguments[name]


def best(scores: dict[Any, list[float]]) -> Any:
    """Return the key with the highest mean, or the first key if there are no measurements."""
    measured = {key: sum(values) / len(values) for key, values in scores.items() if values}
    return max(measured, key=lambda key: measured[key]) if measured else next(iter(scores))
