"""Plan a recipe: count its operations and memory, and estimate its time, without training.

    keras-vit plan --config=vit_s16_i1k
    keras-vit plan --config=vit_paper:ViT_L16,imagenet21k --devices=8
    keras-vit plan --config=digits --config.model.arguments.num_layers=8 --json

Parameters, operations and memory are counted from the architecture. The time is computed from the peak performance of a
TPUv3 core and an assumed utilization (--utilization). The sizes of public data sets are known. For other data that are
not on this machine, pass --examples and --classes.

For other hardware, such as TPU v5e, the count does not show whether a step fits: in a clone of the repository,
`python -m tools.compile_plan --config=NAME --target=v5e-8` compiles the step for a TPU slice or for NVIDIA GPUs.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from keras_vit import cli
from keras_vit.cli import common_flags

common_flags.define_recipe_flags()
flags.DEFINE_integer("devices", 1, "Number of devices that share a batch.", 1)
flags.DEFINE_float("utilization", 0.3, "Assumed fraction of the hardware's peak performance.", 0.001, 1.0)
flags.DEFINE_integer("examples", None, "Number of training examples, if the data set is not on this machine.")
flags.DEFINE_integer("classes", None, "Number of classes, if the data set is not on this machine.")
common_flags.define_json_flag()

with cli.imports(__name__):
    from keras_vit import recipe as recipes
    from keras_vit.inspection.headings import model_title
    from keras_vit.recipe import Recipe
    from keras_vit.training.planning import plan
    from keras_vit.util.progress import Progress

    from .datasets import sizes

# Core-days of the paper's table 2 by model and data set.
PAPER = {"ViT-L/16": {"ImageNet-21k": 230, "JFT-300M": 680}, "ViT-H/14": {"JFT-300M": 2_500}}


def main(argv: Sequence[str]) -> int:
    options = flags.FLAGS

    def count(recipe: Recipe) -> int:
        return sizes.of_recipe(recipe, options.examples, options.classes)[0]

    recipe = cli.recipe_from_flags(argv[1:], count=count)
    recipe = recipes.resolve(recipe)  # with the architecture of a local checkpoint
    devices = options.devices
    examples, classes, batch = sizes.of_recipe(recipe, options.examples, options.classes)
    channels = batch["image"].shape[-1] if batch else 3
    with Progress("Counting"):
        planned = plan.of_recipe(recipe, classes, examples, devices, channels)
    if options.json:
        sys.stdout.write(json.dumps(as_dict(recipe, planned, examples, classes, devices)) + "\n")
    else:
        rows = as_rows(recipe, planned, examples, classes, devices)
        sys.stdout.write("".join(f"{name:<17}{value}\n" for name, value in rows))
    return 0


def as_rows(recipe: Recipe, planned: plan.Plan, examples: int, classes: int, devices: int) -> list[tuple[str, str]]:
    utilization = flags.FLAGS.utilization
    model, counted = recipe.model, planned.cost
    tokens = f", {counted.tokens} tokens" if counted.tokens else ""
    teacher = []
    if planned.teacher:
        teacher = [("", f"including the teacher, with {amount(planned.teacher.macs)}multiply-adds per image")]
    rows = [
        ("model", f"{model_title(dataclasses.asdict(model))}, {model.image_size} px{tokens}, {classes:,} classes"),
        ("parameters", f"{counted.parameters:,}"),
        ("multiply-adds", f"{amount(counted.macs)}per image, forward"),
        ("operations", f"{amount(counted.training_flops)}per image, forward and backward"),
        ("", f"{amount(planned.step_flops)}per step of {planned.batch_size:,} images"),
        ("", f"{amount(planned.total_flops)}in total"),
        *teacher,
        ("length", f"{planned.total_steps:,} steps, {planned.examples_seen:,} images"),
        ("", f"{planned.epochs:,.1f} epochs of {examples:,} examples"),
        ("memory", f"{size(planned.weights_bytes)} per device for weights, gradients and optimizer"),
        (
            "",
            f"{size(planned.activations_bytes)} per device for saved activations, "
            f"about {size(planned.peak_bytes)} with temporary values if the step is not compiled",
        ),
        ("devices", f"{devices}"),
        (
            "TPUv3-core-days",
            f"{planned.core_days(utilization):,.4g} at {utilization:.0%} of 61.5 TFLOP/s (assumed)",
        ),
    ]
    published = PAPER.get(model.variant, {})
    text = ", ".join(f"{days:,} for {model.variant} on {trained_on}" for trained_on, days in published.items())
    return rows + ([("in the paper", text)] if text else [])


def as_dict(recipe: Recipe, planned: plan.Plan, examples: int, classes: int, devices: int) -> dict[str, Any]:
    counted = planned.cost
    utilization = flags.FLAGS.utilization
    return {
        "model": recipe.model.variant,
        "image_size": recipe.model.image_size,
        "tokens": counted.tokens,
        "classes": classes,
        "parameters": counted.parameters,
        "macs_per_image": counted.macs,
        "training_flops_per_image": counted.training_flops,
        "training_flops_per_step": planned.step_flops,
        "training_flops": planned.total_flops,
        "batch_size": planned.batch_size,
        "total_steps": planned.total_steps,
        "examples_seen": planned.examples_seen,
        "examples": examples,
        "epochs": planned.epochs,
        "devices": devices,
        "weights_bytes_per_device": planned.weights_bytes,
        "activations_bytes_per_device": planned.activations_bytes,
        "peak_activations_bytes_per_device": planned.peak_bytes,
        "utilization": utilization,
        "tpu_v3_core_days": planned.core_days(utilization),
    }


def amount(number: float) -> str:
    """Return a number with its SI prefix: `"17.6 G"`."""
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if number >= 10**power:
            return f"{number / 10**power:.3g} {prefix} "
    return f"{number:,} "


def size(count: float) -> str:
    """Return a number of bytes with its unit."""
    for power, unit in ((3, "GiB"), (2, "MiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.3g} {unit}"
    return f"{count / 1024:.3g} KiB"


if __name__ == "__main__":
    cli.run(main)
