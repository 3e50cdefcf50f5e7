"""Costs of a recipe: model size, operations, memory, and time on the hardware of the paper."""

import dataclasses
import math

import numpy as np
from absl import logging

from keras_vit import models
from keras_vit import recipe as recipes
from keras_vit.optim import create_optimizer
from keras_vit.runs import run_directory
from keras_vit.tasks import MaskedTask
from keras_vit.training.planning import cost
from keras_vit.training.planning.cost import Cost

TPU_V3_CORE_FLOPS = 61.5e12  # a TPUv3 chip has two cores and 123 TFLOP/s in bfloat16
UTILIZATION = 0.3  # the paper's ViT-H/14 reached 0.32; big_vision's ViT-S/16 (6.5 h on a TPUv3-8), 0.27
_DAY = 24 * 3_600
# Peak memory of activations in a step that is not compiled, as a multiple of the saved activations. Measured on a CPU:
# for float32 in training runs (benchmarks/step_memory.py); for 16 bits, with sums in float32, 1.2 in a run of ViT-B/16
# and 1.8 in a step of ViT-Ti/16.
TEMPORARY, TEMPORARY_IN_16_BITS, TEMPORARY_OF_RESNET = 1.15, 1.5, 1.75
GRAPH = 0.2e9  # bytes of the traced step and its threads


@dataclasses.dataclass(frozen=True)
class Plan:
    """Costs of a recipe.

    `epochs` is None if the number of training examples is unknown. `teacher` is None without a distillation. Only
    trained weights have gradients, optimizer state and averages. Activations before the first trained weight are not
    saved.
    """

    cost: Cost
    batch_size: int  # images per step, over all devices
    total_steps: int
    epochs: float | None
    weights_bytes: int  # per device: weights, gradients, optimizer state and moving averages
    activations_bytes: int  # per device: the saved activations
    peak_bytes: float  # per device: the saved activations and temporary values of a step that is not compiled
    teacher: Cost | None = None

    def total_bytes(self, on_gpu: bool = False, devices: int = 1, weight_parts: int = 1) -> float:
        """Return the bytes on `devices` devices that share a memory, with the weights divided into `weight_parts`.

        Unless `on_gpu`, the memory also contains the graph of the step, and the weights of the final model's file.
        """
        of_devices = devices * (self.weights_bytes / weight_parts + self.peak_bytes)
        return of_devices + (0 if on_gpu else GRAPH + 4 * self.cost.parameters)

    @property
    def examples_seen(self) -> int:
        """Number of images of the run."""
        return self.batch_size * self.total_steps

    @property
    def step_flops(self) -> int:
        """Floating-point operations per step, over all devices."""
        forward_of_teacher = 2 * self.teacher.macs if self.teacher else 0
        return (self.cost.training_flops + forward_of_teacher) * self.batch_size

    @property
    def total_flops(self) -> int:
        """Floating-point operations of the run."""
        return self.step_flops * self.total_steps

    def core_days(self, utilization: float = UTILIZATION) -> float:
        """Return the time in TPUv3-core-days. `utilization` is the fraction of the hardware's peak."""
        return self.total_flops / (TPU_V3_CORE_FLOPS * utilization * _DAY)


def of_recipe(
    recipe: recipes.Recipe, classes: int, num_examples: int | None = None, devices: int = 1, channels: int = 3
) -> Plan:
    """Return the costs of a recipe without building the model.

    The costs of a teacher come from the record of its run. `num_examples` is needed only for the number of epochs.
    `devices` is the number of devices that share a batch.
    """
    counted, teacher = model_cost(recipe, classes, channels), teacher_cost(recipe, channels)
    batch_size, optim = recipe.data.batch_size, recipe.optim
    at_a_time = -(-batch_size // (devices * optim.accumulation_steps))
    number, temporary = (4, TEMPORARY) if recipe.precision == "float32" else (2, TEMPORARY_IN_16_BITS)
    weights, trained, backward = _trained(recipe, counted, classes, channels)
    activations = at_a_time * round(number * backward * counted.activations)
    activations += 4 * at_a_time * recipe.task.loss_values(recipe, classes)
    return Plan(
        counted,
        batch_size,
        recipe.total_steps,
        None if num_examples is None else batch_size * recipe.total_steps / num_examples,
        weights * (2 if recipe.precision == "bfloat16" else 4)
        + trained * _bytes_of_training(optim)
        + (4 * teacher.parameters if teacher else 0),
        activations,
        round((TEMPORARY_OF_RESNET if recipe.model.variant in models.BIT else temporary) * activations),
        teacher,
    )


def model_cost(recipe: recipes.Recipe, classes: int, channels: int = 3) -> Cost:
    """Return the costs of a recipe's model. See `of_recipe` for the arguments."""
    if isinstance(recipe.task, MaskedTask):
        return cost.of_config(recipe.task.model_config(recipe, channels))
    return cost.of_variant(recipe.model.variant, **recipes.model_arguments_for(recipe, classes, channels))


def teacher_cost(recipe: recipes.Recipe, channels: int = 3) -> Cost | None:
    """Return the costs of the teacher of a distillation; None without a teacher, or if its run is missing."""
    if recipe.task.teacher is None:
        return None
    try:
        config = run_directory.read_config(recipe.task.teacher)
    except FileNotFoundError as error:
        logging.warning("The operations and the memory of the teacher are not counted: %s", error)
        return None
    taught = recipes.resolve(recipes.from_dict(config["recipe"]), config.get("architecture"))
    return model_cost(taught, len(config["data"]["class_names"]), channels)


def _trained(recipe: recipes.Recipe, counted: Cost, classes: int, channels: int) -> tuple[int, int, float]:
    """Count all weights and the trained weights. Also return the share of the weights from the first trained weight."""
    if recipe.adapt == "all":
        return counted.parameters, counted.parameters, 1.0
    model = recipes.describe_model(recipe, classes, channels)  # with the factors of LoRA
    sizes = np.array([math.prod(weight.shape) for weight in model.weights])
    trained = np.array([weight.trainable for weight in model.weights])
    return int(sizes.sum()), int(sizes @ trained), float(sizes[trained.argmax() :].sum() / sizes.sum())


def _bytes_of_training(optim: recipes.Optim) -> int:
    """Return the bytes of the gradient, optimizer state and average of a trained weight."""
    # For Muon, count all weights as matrices: the other weights, which AdamW updates, are few.
    slots = sum(2 if slot.dtype == "bfloat16" else 4 for slot in create_optimizer(optim).slots)
    gradients = 4 * (2 if optim.accumulation_steps > 1 else 1)
    return gradients + slots + (4 if optim.ema_momentum else 0)
