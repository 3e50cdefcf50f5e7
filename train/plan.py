"""Says what a recipe will cost, without training it.

    python -m train.plan --config=train/configs/vit_s16_i1k.py
    python -m train.plan --config=train/configs/vit_paper.py:ViT_L16,imagenet21k --devices=8
    python -m train.plan --config=train/configs/digits.py --config.model.num_layers=8 --json

Parameters, operations and memory are counted from the architecture; time is that count divided by the peak of a
TPUv3 core and the share of it (--utilisation) that a run is assumed to reach. Nothing is measured.
"""

import json
import sys

from absl import flags

from keras_vit import data, program
from keras_vit.benchmarking import cost, known, plan

program.define_config_flag()
flags.DEFINE_integer("devices", 1, "Devices among which a batch is divided.", 1)
flags.DEFINE_float("utilisation", plan.UTILISATION, "Share of the hardware's peak that is assumed.", 0.001, 1.0)
flags.DEFINE_integer("examples", None, "Training examples, where the data are not at hand.")
flags.DEFINE_integer("classes", None, "Classes, where the data are not at hand.")
flags.DEFINE_bool("json", False, "Write one JSON object instead of a table.")


def main(argv):
    del argv
    options = flags.FLAGS
    recipe = program.recipe_from_flags()
    examples, classes, channels = size_of_data(recipe)
    planned = plan.of_recipe(recipe, classes, examples, options.devices, channels)
    write = as_json if options.json else as_table
    sys.stdout.write(write(recipe, planned, examples, classes, options))
    return 0


def size_of_data(recipe):
    """Examples, classes and channels: from the flags, from what is known of public data sets, or from the data."""
    options, source_name = flags.FLAGS, recipe.data.source
    examples, classes = known.examples_and_classes(source_name, recipe.data.train_split)
    examples, classes, channels = options.examples or examples, options.classes or classes, 3
    if examples is None or classes is None or not source_name.startswith(("tfds:", "tfrecord:", "vtab:")):
        try:
            source = data.open_source(source_name, split=recipe.data.train_split)
        except (OSError, ImportError) as error:
            if examples is None or classes is None:
                raise ValueError(
                    f"The data of the recipe cannot be opened ({error}). Give --examples and --classes instead."
                ) from error
        else:
            examples, classes = options.examples or source.num_examples, options.classes or source.num_classes
            image = data.train_batches(source, recipe.data.pp_train, batch_size=1).element_spec["image"]
            channels = image.shape[-1]
    return examples, classes, channels


def as_table(recipe, planned, examples, classes, options):
    model, counted = recipe.model, planned.cost
    tokens = f", {counted.tokens} tokens" if counted.tokens else ""
    rows = [
        ("model", f"{model.variant}, {model.image_size} px{tokens}, {classes:,} classes"),
        ("parameters", f"{counted.parameters:,}"),
        ("multiply-adds", f"{amount(counted.macs)} an image, forward"),
        ("operations", f"{amount(counted.training_flops)}FLOPs an image, forward and backward"),
        ("", f"{amount(counted.training_flops * planned.batch_size)}FLOPs a step of {planned.batch_size:,} images"),
        ("", f"{amount(planned.total_flops)}FLOPs in all"),
        ("length", f"{planned.total_steps:,} steps, {planned.examples_seen:,} images"),
        ("", f"{planned.epochs:,.1f} epochs of {examples:,} examples"),
        ("memory", f"{size(planned.weights_bytes)} a device for weights, gradients and optimiser"),
        (
            "",
            f"{size(planned.activations_bytes)} a device for activations if compiled, "
            f"{size(cost.UNFUSED * planned.activations_bytes)} if not",
        ),
        ("devices", f"{options.devices}"),
        (
            "TPUv3-core-days",
            f"{planned.core_days(options.utilisation):,.4g} at {options.utilisation:.0%} of 61.5 TFLOP/s (assumed)",
        ),
    ]
    rows += [
        ("" if index else "in the paper", f"{run.core_days:,} for {run.name} ({published_utilisation(run)})")
        for index, run in enumerate(plan.PAPER)
    ]
    return "\n".join(f"{name:<17}{value}" for name, value in rows) + "\n"


def published_utilisation(run):
    shares = [f"{run.utilisation(epochs):.0%} for {epochs} epochs" for epochs in run.epochs]
    return f"a utilisation of {' or '.join(shares)}"


def as_json(recipe, planned, examples, classes, options):
    counted = planned.cost
    content = {
        "model": recipe.model.variant,
        "image_size": recipe.model.image_size,
        "tokens": counted.tokens,
        "classes": classes,
        "parameters": counted.parameters,
        "macs_per_image": counted.macs,
        "training_flops_per_image": counted.training_flops,
        "training_flops": planned.total_flops,
        "total_steps": planned.total_steps,
        "examples_seen": planned.examples_seen,
        "examples": examples,
        "epochs": planned.epochs,
        "devices": options.devices,
        "weights_bytes_per_device": planned.weights_bytes,
        "activations_bytes_per_device": planned.activations_bytes,
        "utilisation": options.utilisation,
        "tpu_v3_core_days": planned.core_days(options.utilisation),
        "paper_tpu_v3_core_days": {run.name: run.core_days for run in plan.PAPER},
    }
    return json.dumps(content) + "\n"


def amount(number):
    """A number with its prefix: 17.6 G."""
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if number >= 10**power:
            return f"{number / 10**power:.3g} {prefix}"
    return f"{number:,} "


def size(count):
    """A number of bytes with its unit."""
    for power, unit in ((3, "GiB"), (2, "MiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.3g} {unit}"
    return f"{count / 1024:.3g} KiB"


def run():
    program.run(main)


if __name__ == "__main__":
    run()
