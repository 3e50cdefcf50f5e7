"""Compile the training step of a recipe for a TPU slice or NVIDIA GPUs, on a machine without these devices.

    python -m tools.compile_plan --config=vit_s16_i1k --target=v5e-8
    KERAS_BACKEND=jax python -m tools.compile_plan --config=vit_s16_i1k --target=a100:8 --distribute=fsdp --nosearch

The extra [plan] installs the compiler for TPUs; the extra [plan-gpu] installs the compiler for NVIDIA GPUs. The program
prints whether the step fits, what limits its speed, and which batch sizes fit. Each batch size takes a minute or more;
--nosearch only compiles the batch size of the recipe. `keras-vit plan` counts the operations and memory of a recipe
without a compiler.
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
flags.DEFINE_string("target", None, "TPU slice or GPUs to compile the step for: v5e-8, v4-32, h100, a100:8.")
flags.DEFINE_integer("slices", 1, "Number of TPU slices that train together; needs KERAS_BACKEND=jax.", 1)
common_flags.define_distribute_flag()
flags.DEFINE_bool("search", True, "Search for the largest batch size that fits, with and without remat.")
flags.DEFINE_integer("examples", None, "Number of training examples, if the data set is not available.")
flags.DEFINE_integer("classes", None, "Number of classes, if the data set is not available.")
common_flags.define_json_flag()

with cli.imports(__name__):
    import keras

    from keras_vit.recipe import Recipe
    from keras_vit.util.progress import Progress
    from tools.compile_plan import compiler, step_plan, targets
    from tools.compile_plan.step_report import Report
    from train.datasets import sizes


def main(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    if not options.target:
        raise ValueError("--target is missing: a TPU slice or GPUs, such as --target=v5e-8 or --target=h100.")
    target = targets.parse(options.target, options.slices)
    recipe = cli.recipe_from_flags(argv[1:])
    _, classes, batch = sizes.of_recipe(recipe, options.examples, options.classes)
    with Progress(f"Compiling for {options.target}"):
        report = compile_for(target, recipe, classes, batch)
    if options.json:
        sys.stdout.write(json.dumps(report.as_dict()) + "\n")
    else:
        sys.stdout.write("".join(f"{name:<17}{value}\n" for name, value in report.rows()))
    return 0


def compile_for(target: targets.Target, recipe: Recipe, classes: int, batch: Any) -> Report:
    """Compile the step of a recipe, changes that make the step fit, and the largest batches."""
    chosen = compiler.of_target(target)
    setting = step_plan.setting_of(recipe, fsdp_of(flags.FLAGS.distribute, chosen))
    planner = step_plan.of_recipe(recipe, classes, chosen, batch)
    estimate = planner.estimate(setting)
    remedies = [] if estimate.fits else planner.remedies(setting)
    largest = {}
    if flags.FLAGS.search:
        for remat in sorted({setting.remat, planner.rematerializes}):
            largest[remat] = planner.largest_batch(dataclasses.replace(setting, remat=remat))
    return Report(estimate, remedies, largest, chosen.versions())


def fsdp_of(distribute: str, chosen: compiler.Compiler) -> int:
    """Return the number of devices that share a copy of the weights."""
    if distribute != "fsdp" and not distribute.startswith("mesh("):
        return 1
    if keras.backend.backend() != "jax":
        raise ValueError(f"--distribute={distribute} needs the JAX backend. Set KERAS_BACKEND=jax.")
    from keras_vit.training.jax import devices

    return devices.fsdp_of(distribute, chosen.devices)


if __name__ == "__main__":
    cli.run(main)
