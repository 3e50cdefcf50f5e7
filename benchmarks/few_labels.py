"""Compare pre-training without labels with training from scratch, where 1 % or 10 % of the labels are known.

    python -m benchmarks.few_labels --workdir=runs/few_labels                       # hours; run it again to resume
    python -m benchmarks.few_labels --workdir=/tmp/try --steps=2 --seeds=1          # a trial that writes no document

On Fashion-MNIST, whose 60,000 images are pre-trained on without labels. All starts learn from the same labeled images.
Rate and number of steps of each start are chosen on 5,000 other training images, with the first seed; the table shows
the accuracy on the test images with the chosen ones. Finished runs are not repeated, unfinished ones continue.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from absl import flags, logging

from benchmarks import tables
from keras_vit import _io, data, program
from keras_vit.data.sources import ArraySource
from keras_vit.training import metrics, run_directory

PRETRAINING = {"mae": "mae_fashion_mnist", "masked_patch": "masked_patch_fashion_mnist"}
STARTS = ("scratch", *PRETRAINING)
SHARES = (0.01, 0.1)
RATES = (3e-4, 1e-3, 3e-3)
STEPS = (300, 1_000)
VALIDATION = 5_000
BATCH = 100
DOCUMENT = "docs/results.md"

flags.DEFINE_string("workdir", None, "Directory for all runs; finished runs in it are kept.")
flags.DEFINE_integer("seeds", 3, "Number of seeds.", 1)
flags.DEFINE_integer("steps", None, "Number of steps of every run for a trial, which writes no document.", 1)
flags.DEFINE_string("source", "fashion_mnist", "Labeled images in memory, with the splits train and test.")


class Setting(NamedTuple):
    """Rate and number of steps of a training on labels."""

    rate: float
    steps: int


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    if not options.workdir:
        raise ValueError("--workdir is missing: the directory for all runs.")
    files = {share: make_data(share) for share in SHARES}
    for seed in range(options.seeds):
        for start, config in PRETRAINING.items():
            train(
                f"{start}_{seed}",
                seed,
                [f"--config=train/configs/{config}.py", f"--config.data.source={options.source}"],
            )
    rows = []
    for share, start in itertools.product(SHARES, STARTS):
        chosen = best(share, start, files[share])
        runs = [learn(share, start, chosen, files[share], seed, "test") for seed in range(options.seeds)]
        rows.append(row(share, start, chosen, [last_accuracy(run) for run in runs], files[share]))
    table = _io.markdown_table(list(rows[0]), [list(line.values()) for line in rows])
    sys.stdout.write(table + "\n")
    if options.steps is None:
        tables.write_between(DOCUMENT, "few labels", table)
    return 0


def make_data(share: float) -> str:
    """Write the labeled images of a share, other images to choose settings on, and the test images."""
    path = os.path.join(flags.FLAGS.workdir, "data", f"{100 * share:g}_percent.npz")
    if os.path.exists(path):
        return path
    source = flags.FLAGS.source
    train_source, test = (cast(ArraySource, data.open_source(source, split=split)) for split in ("train", "test"))
    labeled, validation = choose(train_source.labels(), share, min(VALIDATION, len(train_source.labels()) // 4))
    arrays: dict[str, Any] = {"class_names": np.asarray(train_source.class_names)}
    for split, source, chosen in (
        ("train", train_source, labeled),
        ("validation", train_source, validation),
        ("test", test, slice(None)),
    ):
        arrays[f"x_{split}"], arrays[f"y_{split}"] = source.images[chosen], source.labels()[chosen]
    with _io.atomic_file(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)
    return path


def choose(labels: np.ndarray, share: float, num_validation: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of labeled images, as many of each class, and of images to choose settings on.

    A smaller share is a part of a larger one, and no image is in both.
    """
    order = np.random.default_rng(0).permutation(len(labels))
    validation, rest = order[:num_validation], order[num_validation:]
    classes = np.unique(labels)
    count = max(1, round(share * len(labels) / len(classes)))
    labeled = np.concatenate([rest[labels[rest] == label][:count] for label in classes])
    return np.sort(labeled), np.sort(validation)


def best(share: float, start: str, file: str) -> Setting:
    """Return the setting with the highest accuracy on the images to choose on, with the first seed."""
    settings = [Setting(*values) for values in itertools.product(RATES, STEPS)]
    return max(settings, key=lambda one: last_accuracy(learn(share, start, one, file, 0, "validation")))


def learn(share: float, start: str, setting: Setting, file: str, seed: int, split: str) -> str:
    """Train on labels, and return the run directory."""
    name = f"{start}_{100 * share:g}_percent_{setting.rate:g}_{setting.steps}_{split}_{seed}"
    config = PRETRAINING.get(start, PRETRAINING["mae"])
    overrides = [
        f"--config=train/configs/{config}.py",
        "--config.task=classification",
        f"--config.data.source=npz:{os.path.abspath(file)}",
        f"--config.data.eval_split={split}",
        f"--config.data.batch_size={BATCH}",
        f"--config.optim.learning_rate={setting.rate}",
        f"--config.optim.schedule.warmup_steps={setting.steps // 10}",
        "--config.optim.beta2=0.999",
        "--config.optim.clip_norm=1.0",
        f"--config.total_steps={setting.steps}",
        "--config.eval_every=0",
    ]
    if start != "scratch":
        overrides.append(f"--config.model.checkpoint={run_path(f'{start}_{seed}', run_directory.MODEL)}")
    return train(name, seed, overrides)


def train(name: str, seed: int, arguments: Sequence[str]) -> str:
    """Train a model unless that is done, and return the run directory."""
    directory = run_path(name)
    if not os.path.exists(os.path.join(directory, run_directory.MODEL)):
        steps = [] if flags.FLAGS.steps is None else [f"--config.total_steps={flags.FLAGS.steps}"]
        run_program("main", [*arguments, f"--workdir={directory}", f"--config.seed={seed}", *steps])
    return directory


def row(share: float, start: str, setting: Setting, accuracies: Sequence[float], file: str) -> dict[str, str]:
    """Return a line of the table, with classifiers on the features of the pre-trained encoder beside it."""
    evaluators = {"knn": "kNN, k = 20:", "linear_probe": "linear probe:"}
    found = [features(start, seed, share, file) for seed in range(flags.FLAGS.seeds)] if start != "scratch" else []
    return {
        "labels": f"{100 * share:g} %",
        "start": start.replace("_", " "),
        "rate:": f"{setting.rate:g}",
        "steps:": f"{setting.steps:,}",
        "test accuracy:": tables.percent(accuracies),
        **{title: tables.percent([one[name] for one in found]) for name, title in evaluators.items()},
    }


def features(start: str, seed: int, share: float, file: str) -> dict[str, float]:
    """Return the accuracies of classifiers on the features of a pre-trained encoder, which see the labeled images."""
    directory = run_path(f"{start}_{seed}")
    path = os.path.join(directory, f"{100 * share:g}_percent.json")
    if not os.path.exists(path):
        data_arguments = f"source='npz:{os.path.abspath(file)}', train_split='train'"
        evaluators = [f"knn(neighbors=(20,), {data_arguments})", f"linear_probe({data_arguments})"]
        flags_of = [f"--evaluators={evaluator}" for evaluator in evaluators]
        _io.write_json(path, json.loads(run_program("evaluate", [f"--model={directory}", "--json", *flags_of])))
    found = _io.read_json(path)
    return {name: float(found[name][key]) for name, key in (("knn", "k20"), ("linear_probe", "accuracy"))}


def run_program(name: str, arguments: Sequence[str]) -> bytes:
    """Run a program of `train/` and return its output."""
    logging.info("train.%s %s", name, " ".join(arguments))
    return subprocess.run(
        [sys.executable, "-m", f"train.{name}", *arguments], stdout=subprocess.PIPE, check=True
    ).stdout


def run_path(name: str, *file: str) -> str:
    return os.path.join(flags.FLAGS.workdir, name, *file)


def last_accuracy(directory: str) -> float:
    """Return the accuracy at the end of a run."""
    lines = metrics.read_metrics(os.path.join(directory, run_directory.METRICS))
    return [line["eval_accuracy"] for line in lines if "eval_accuracy" in line][-1]


if __name__ == "__main__":
    program.run(main)
