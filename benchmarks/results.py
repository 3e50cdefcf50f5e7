"""Train and evaluate models on Fashion-MNIST with several seeds, and write the tables of docs/results.md.

    python -m benchmarks.results --workdir=runs/results                      # everything
    python -m benchmarks.results --workdir=runs/results --only=bit --seeds=1
    python -m benchmarks.results --workdir=/tmp/try --steps=3 --seeds=1      # a trial that writes no document

The tables show all finished runs in the directory. If a model has no finished run in the directory, its row in the
document does not change. A stopped program can be resumed: finished runs are not repeated, and unfinished runs are
resumed. Times are processor times of the training command, summed over all cores.
"""

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from absl import flags, logging

from benchmarks import tables
from benchmarks.training_runs import last_value, machine, run_program
from keras_vit import cli, data
from keras_vit.data.sources import ArraySource
from keras_vit.runs import run_directory
from keras_vit.util import file_io, formatting

MODELS = {
    "hybrid": ("train/configs/fashion_mnist.py", "hybrid: ResNet root and two units, then ViT"),
    "bit": ("train/configs/fashion_mnist_models.py:bit", "BiT, two units"),
    "hour_bit": ("train/configs/fashion_mnist_hour.py:bit", "BiT, four units, at 56 pixels"),
    "hour_hybrid": ("train/configs/fashion_mnist_hour.py:hybrid", "hybrid, two units and two blocks, at 56 pixels"),
    "hour_vit": ("train/configs/fashion_mnist_hour.py:vit", "plain ViT, six blocks of width 96"),
}
EVALUATORS = ("classification", "fewshot(shots=(10,))", "knn(neighbors=(20,))")
TRANSFER = "train/configs/fashion_mnist_transfer.py"
# Stage of the recipe, overrides, and description.
TRANSFER_RUNS = {
    "finetune": (
        "finetune",
        ["--config.model.weights={pretrained}/model.keras"],
        "fine-tuned from eight classes at 28 pixels",
    ),
    "scratch": ("scratch", [], "from scratch, rate 0.002"),
    "scratch_low_rate": ("scratch", ["--config.optim.learning_rate=0.0005"], "from scratch, rate 0.0005"),
}
HELD_BACK = (0, 6)  # as in the recipe: T-shirt/top, Shirt
EXAMPLES = 1_000  # training examples of these two classes together
DOCUMENT = "docs/results.md"
CPU_SECONDS = "cpu_seconds.json"
EVALUATED = "evaluators.json"

flags.DEFINE_string("workdir", None, "Directory for all runs; finished runs are not repeated.")
flags.DEFINE_multi_enum("only", [], [*MODELS, "transfer"], "Do only this; may be repeated.")
flags.DEFINE_integer("seeds", 3, "Number of seeds.", 1)
flags.DEFINE_integer("steps", None, "Number of steps, for a trial that does not write the document.", 1)


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    if not options.workdir:
        raise ValueError("--workdir is missing: the directory for all runs.")
    if options.steps is None and not os.path.exists(DOCUMENT):
        raise ValueError(f"{DOCUMENT} does not exist here. Start the program in the root of a checkout.")
    for seed in range(options.seeds):
        for name in options.only or [*MODELS, "transfer"]:
            if name == "transfer":
                run_transfer(seed)
            else:
                train(MODELS[name][0], run_path(name, seed), seed)
                evaluate(run_path(name, seed))
    report()
    return 0


# ---- running ---------------------------------------------------------------------------------------------------------


def train(config: str, directory: str, seed: int, overrides: Sequence[str] = ()) -> None:
    """Train a model unless its run is finished, and add up the processor time."""
    if run_directory.is_finished(directory):
        return
    arguments = [f"--config={config}", f"--workdir={directory}", f"--config.seed={seed}", *overrides]
    if flags.FLAGS.steps is not None:
        arguments.append(f"--config.total_steps={flags.FLAGS.steps}")
    started, path = cpu_seconds(), os.path.join(directory, CPU_SECONDS)
    before = file_io.read_json(path)["seconds"] if os.path.exists(path) else 0.0
    try:
        run_program("main", arguments)
    finally:
        file_io.write_json(path, {"seconds": before + cpu_seconds() - started})


def evaluate(directory: str) -> None:
    """Evaluate a model unless its results exist."""
    path = os.path.join(directory, EVALUATED)
    if not os.path.exists(path):
        evaluators = [f"--evaluators={evaluator}" for evaluator in EVALUATORS]
        output = run_program("evaluate", [f"--model={directory}", "--batch_size=500", "--json", *evaluators])
        file_io.write_json(path, json.loads(output))


def run_transfer(seed: int) -> None:
    """Pre-train on eight classes, then train on the two other classes from these weights and from scratch."""
    folder = os.path.join(flags.FLAGS.workdir, "data")
    make_data(folder)
    pretrained = run_path("pretrain", seed)
    train(f"{TRANSFER}:pretrain,{folder}", pretrained, seed)
    for name, (stage, overrides, _) in TRANSFER_RUNS.items():
        overrides = [override.format(pretrained=pretrained) for override in overrides]
        train(f"{TRANSFER}:{stage},{folder}", run_path(name, seed), seed, overrides)


def make_data(folder: str) -> None:
    """Write eight classes of Fashion-MNIST to eight.npz, and a few examples of the two other classes to two.npz."""
    if os.path.exists(os.path.join(folder, "two.npz")):
        return
    sources = {split: cast(ArraySource, data.open_source("fashion_mnist", split=split)) for split in ("train", "test")}
    names = sources["train"].class_names
    kept = [index for index in range(len(names)) if index not in HELD_BACK]
    for file, classes, limit in (("eight.npz", kept, None), ("two.npz", list(HELD_BACK), EXAMPLES // len(HELD_BACK))):
        arrays: dict[str, Any] = {"class_names": np.asarray([names[index] for index in classes])}
        for split, source in sources.items():
            found = [np.flatnonzero(source.labels() == index) for index in classes]
            chosen = np.sort(np.concatenate([some[: limit if split == "train" else None] for some in found]))
            arrays[f"x_{split}"] = source.images[chosen, ..., 0]
            arrays[f"y_{split}"] = np.searchsorted(classes, source.labels()[chosen])
        with file_io.atomic_file(os.path.join(folder, file)) as path:
            np.savez_compressed(path, **arrays)


def cpu_seconds() -> float:
    """Return the processor time of ended child processes."""
    return sum(os.times()[2:4])


def run_path(name: str, seed: int, *file: str) -> str:
    return os.path.join(flags.FLAGS.workdir, f"{name}_{seed}", *file)


# ---- reporting -------------------------------------------------------------------------------------------------------


def report() -> None:
    """Print the tables of all finished runs and write them into the document."""
    seeds_of = {name: finished(name) for name in (*MODELS, *TRANSFER_RUNS)}
    common = sorted(set.intersection(*(set(seeds_of[name]) for name in TRANSFER_RUNS)))
    rows = {
        "models": [model_row(name, seeds_of[name]) for name in MODELS if seeds_of[name]],
        "transfer": [transfer_row(name, common) for name in TRANSFER_RUNS if common],
    }
    for name, lines in rows.items():
        if lines:
            table = formatting.markdown_table(list(lines[0]), [list(line.values()) for line in lines])
            sys.stdout.write(table + "\n\n")
            if flags.FLAGS.steps is None:
                tables.replace_rows(DOCUMENT, name, table)
                logging.info("Wrote the table of %s in %s", name, DOCUMENT)


def finished(name: str) -> list[int]:
    """Return the seeds of a model's finished runs."""
    last = EVALUATED if name in MODELS else run_directory.MODEL
    found = (re.fullmatch(rf"{name}_(\d+)", directory) for directory in os.listdir(flags.FLAGS.workdir))
    return sorted(int(match[1]) for match in found if match and os.path.exists(run_path(name, int(match[1]), last)))


def model_row(name: str, seeds: Sequence[int]) -> dict[str, str]:
    config, description = MODELS[name]
    found = [file_io.read_json(run_path(name, seed, EVALUATED)) for seed in seeds]
    return {
        "model": description,
        "`--config`": f"`{config}`",
        **costs(name, seeds),
        "test accuracy:": tables.percent([one["classification"]["accuracy"] for one in found]),
        "10-shot linear:": tables.percent([one["fewshot"]["10shot"] for one in found]),
        "kNN, k = 20:": tables.percent([one["knn"]["k20"] for one in found]),
    }


def transfer_row(name: str, seeds: Sequence[int]) -> dict[str, str]:
    return {
        "T-shirt or shirt, at 56 pixels": TRANSFER_RUNS[name][2],
        **costs(name, seeds),
        "test accuracy:": tables.percent([last_value(run_path(name, seed)) for seed in seeds]),
    }


def costs(name: str, seeds: Sequence[int]) -> dict[str, str]:
    """Return the columns that both tables share."""
    recipes = [run_directory.read_config(run_path(name, seed))["recipe"] for seed in seeds]
    steps = {recipe["total_steps"] for recipe in recipes}
    if len(steps) > 1:
        raise ValueError(
            f"The runs of {name} in {flags.FLAGS.workdir} have different numbers of steps: {sorted(steps)}. "
            "Delete the directories of the older recipe."
        )
    minutes = [file_io.read_json(run_path(name, seed, CPU_SECONDS))["seconds"] / 60 for seed in seeds]
    return {
        "precision": recipes[0]["precision"],
        "measured on": machine(run_path(name, seeds[0])),
        "steps:": f"{steps.pop():,}",
        "CPU minutes per run:": f"{np.mean(minutes):.1f}",
        "seeds:": ", ".join(map(str, seeds)),
    }


if __name__ == "__main__":
    cli.run(main)
