"""What a recipe costs: size of the model, operations, memory, and time on the hardware of the paper."""

import dataclasses

from keras_vit import recipe as recipes
from keras_vit.planning import cost

TPU_V3_CORE_FLOPS = 61.5e12  # a TPUv3 chip has two cores and 123 TFLOP/s in bfloat16
UTILISATION = 0.3  # the paper's ViT-H/14 reached 0.32, and big_vision's ViT-S/16 in 6.5 h on a TPUv3-8 0.27
_DAY = 24 * 3_600
_WITHOUT_COST = ("head_bias", "drop_path_rate", "pool_padding")


@dataclasses.dataclass(frozen=True)
class Published:
    """A run of the paper's table 2, and what it cost.

    Attributes:
        name: Model and data.
        variant: The model.
        examples: Images of the data set.
        epochs: As table 3 has them; of two numbers it does not say which one table 2 is about.
        core_days: TPUv3-core-days, as published.
    """

    name: str
    variant: str
    examples: float
    epochs: tuple[int, ...]
    core_days: float

    def utilisation(self, epochs: int) -> float:
        """Share of the hardware's peak that the published time means, by the count of this package."""
        flops = cost.of_variant(self.variant).training_flops * self.examples * epochs
        return flops / (self.core_days * _DAY * TPU_V3_CORE_FLOPS)


PAPER = (
    Published("ViT-L/16 on ImageNet-21k", "ViT-L/16", 14.2e6, (30, 90), 230),
    Published("ViT-L/16 on JFT-300M", "ViT-L/16", 303e6, (7, 14), 680),
    Published("ViT-H/14 on JFT-300M", "ViT-H/14", 303e6, (14,), 2_500),
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Costs of a recipe.

    Attributes:
        cost: Of the model.
        batch_size: Images of a step.
        total_steps: Steps of the run.
        epochs: How often each example is seen; None where the size of the data is not known.
        weights_bytes: Of the weights, their gradients, the optimiser and the moving averages, on each device.
        activations_bytes: Of what a device keeps for the gradient at one time; see `cost.Cost`.
    """

    cost: cost.Cost
    batch_size: int
    total_steps: int
    epochs: float | None
    weights_bytes: int
    activations_bytes: int

    @property
    def examples_seen(self) -> int:
        """Images over the whole run."""
        return self.batch_size * self.total_steps

    @property
    def step_flops(self) -> int:
        """Floating-point operations of a step, on all devices together."""
        return self.cost.training_flops * self.batch_size

    @property
    def total_flops(self) -> int:
        """Floating-point operations of the whole run."""
        return self.step_flops * self.total_steps

    def core_days(self, utilisation: float = UTILISATION) -> float:
        """TPUv3-core-days.

        Args:
            utilisation: Share of the peak that the run reaches.
        """
        return self.total_flops / (TPU_V3_CORE_FLOPS * utilisation * _DAY)


def of_recipe(
    recipe: recipes.Recipe, classes: int, num_examples: int | None = None, devices: int = 1, channels: int = 3
) -> Plan:
    """Counts what a recipe costs, without building anything.

    Args:
        recipe: The recipe.
        classes: Number of classes of its data.
        num_examples: Number of training examples, for the epochs.
        devices: Devices among which a batch is divided.
        channels: Of the images.
    """
    counted = model_cost(recipe, classes, channels)
    batch_size, optim = recipe.data.batch_size, recipe.optim
    at_a_time = -(-batch_size // (devices * optim.accumulation_steps))
    number = 4 if recipe.precision == "float32" else 2
    return Plan(
        counted,
        batch_size,
        recipe.total_steps,
        None if num_examples is None else batch_size * recipe.total_steps / num_examples,
        counted.parameters * _bytes_per_weight(recipe),
        counted.activations * at_a_time * number,
    )


def model_cost(recipe: recipes.Recipe, classes: int, channels: int = 3) -> cost.Cost:
    """Counts the model of a recipe. Arguments as for `of_recipe`."""
    arguments = {name: value for name, value in recipes.model_arguments(recipe).items() if name not in _WITHOUT_COST}
    return cost.of_variant(recipe.model.variant, classes=classes, channels=channels, **arguments)


def _bytes_per_weight(recipe: recipes.Recipe) -> int:
    optim = recipe.optim
    weight = 2 if recipe.precision == "bfloat16" else 4
    first_moment = 2 if optim.momentum_dtype == "bfloat16" else 4
    slots = {"sgd": first_moment if optim.momentum else 0}.get(optim.name, first_moment + 4)
    gradients = 4 * (2 if optim.accumulation_steps > 1 else 1)
    return weight + gradients + slots + (4 if optim.ema else 0)
