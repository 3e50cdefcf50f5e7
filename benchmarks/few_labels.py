"""Compare pre-training without labels to training from scratch when 1% or 10% of the labels are known.

    python -m benchmarks.few_labels --workdir=runs/few_labels                       # hours; run it again to resume
    python -m benchmarks.few_labels --workdir=/tmp/try --steps=2 --seeds=1          # a trial that writes no document

The data set is Fashion-MNIST. Pre-training uses its 60,000 training images without labels. All starts (pre-trained or
random weights) are then trained on the same labeled images. For each start, the rate and the number of steps are chosen
from a grid, on 5,000 other training images with the first seed. The table shows the test accuracy with the chosen
settings; it is written again after each line. Finished runs are not repeated, and unfinished runs are resumed.
"""

import itertools
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from absl import flags

from benchmarks import tables
from benchmarks.training_runs import last_value, machine, run_program
from keras_vit import cli, data
from keras_vit.data.sources import ArraySource
from keras_vit.runs import run_directory
from keras_vit.util import file_io, formatting

PRETRAINING = {"mae": "mae_fashion_mnist", "masked_patch": "masked_patch_fashion_mnist"}
STARTS = ("scratch", *PRETRAINING)
SHARES = (0.01, 0.1)
RATES = (1e-3, 3e-3, 1e-2)
STEPS = (1_000, 3_000)
VALIDATION = 5_000
BATCH = 50
DOCUMENT = "docs/results.md"
CHOSEN_BY, REPORTED = "eval_accuracy", "test/accuracy"

flags.DEFINE_string("workdir", None, "Directory for all runs; finished runs are not repeated.")
flags.DEFINE_integer("seeds", 3, "Number of seeds.", 1)
flags.DEFINE_integer("steps", None, "Number of steps of every run, for a trial that does not write the document.", 1)
flags.DEFINE_string("source", "fashion_mnist", "Labeled images in memory, with the splits train and test.")


class Setting(NamedTuple):
    """Rate and number of steps of a training run with labels."""

    rate: float
    steps: int


def main(argv: Sequence[str]) -> int:
    del argv
    if not flags.FLAGS.workdir:
        raise ValueError("--workdir is missing: the directory for all runs.")
    files = {share: make_data(share) for share in SHARES}
    rows = {}
    for seed, share, start in itertools.product(range(flags.FLAGS.seeds), SHARES, STARTS):
        rows[share, start] = row(share, start, files, seed + 1)
        one_run = learn(SHARES[0], STARTS[0], Setting(RATES[0], STEPS[0]), files[SHARES[0]], seed=0)
        write(list(rows.values()), one_run)
    return 0


def make_data(share: float) -> str:
    """Write a file with a share of the labeled images, the validation images and the test images."""
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
    with file_io.atomic_file(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)
    return path


def choose(labels: np.ndarray, share: float, num_validation: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the labeled images and of the validation images, with equally many images per class.

    The labeled images of a smaller share are a subset of those of a larger share. No image is in both sets.
    """
    order = np.random.default_rng(0).permutation(len(labels))
    validation, rest = order[:num_validation], order[num_validation:]
    classes = np.unique(labels)
    count = max(1, round(share * len(labels) / len(classes)))
    labeled = np.concatenate([rest[labels[rest] == label][:count] for label in classes])
    return np.sort(labeled), np.sort(validation)


def pretrain(start: str, seed: int) -> str:
    """Train on all images without labels, and return the run directory."""
    config = f"--config=train/configs/{PRETRAINING[start]}.py"
    return train(f"{start}_{seed}", seed, [config, f"--config.data.source={flags.FLAGS.source}"])


def best(share: float, start: str, file: str) -> Setting:
    """Return the setting with the highest validation accuracy for the first seed."""

    def accuracy(setting: Setting) -> float:
        return last_value(learn(share, start, setting, file, seed=0), CHOSEN_BY)

    return max(itertools.starmap(Setting, itertools.product(RATES, STEPS)), key=accuracy)


def learn(share: float, start: str, setting: Setting, file: str, seed: int) -> str:
    """Train with labels, and return the run directory."""
    name = f"{start}_{100 * share:g}_percent_{setting.rate:g}_{setting.steps}_{seed}"
    config = PRETRAINING.get(start, PRETRAINING["mae"])
    overrides = [
        f"--config=train/configs/{config}.py",
        "--config.task=classification",
        f"--config.data.source=npz:{os.path.abspath(file)}",
        "--config.data.eval_split=validation",
        """--config.evaluators=("classification(name='test', split='test')",)""",
        f"--config.data.batch_size={BATCH}",
        f"--config.optim.learning_rate={setting.rate}",
        f"--config.optim.schedule.warmup_steps={setting.steps // 10}",
        "--config.optim.beta2=0.999",
        "--config.optim.clip_norm=1.0",
        f"--config.total_steps={setting.steps}",
        "--config.eval_every=0",
    ]
    if start != "scratch":
        overrides.append(f"--config.model.weights={os.path.join(pretrain(start, seed), run_directory.MODEL)}")
    return train(name, seed, overrides)


def train(name: str, seed: int, arguments: Sequence[str]) -> str:
    """Train a model unless its run is finished, and return the run directory."""
    directory = os.path.join(flags.FLAGS.workdir, name)
    if not run_directory.is_finished(directory):
        steps = [] if flags.FLAGS.steps is None else [f"--config.total_steps={flags.FLAGS.steps}"]
        run_program("main", [*arguments, f"--workdir={directory}", f"--config.seed={seed}", *steps])
    return directory


def features(start: str, seed: int, files: dict[float, str]) -> dict[str, dict[str, float]]:
    """Fit classifiers to the features of a pre-trained encoder, and return their accuracies by evaluator and share.

    The classifiers are fitted to the labeled images.
    """
    directory = pretrain(start, seed)
    path = os.path.join(directory, "few_labels.json")
    if not os.path.exists(path):
        arguments = [f"--model={directory}", "--batch_size=500", "--json"]
        for share, file in files.items():
            where = f"source='npz:{os.path.abspath(file)}', train_split='train', split='test'"
            arguments += [
                f"--evaluators=knn(name='knn {share}', neighbors=(20,), {where})",
                f"--evaluators=linear_probe(name='linear_probe {share}', {where})",
            ]
        file_io.write_json(path, json.loads(run_program("evaluate", arguments)))
    return file_io.read_json(path)


def row(share: float, start: str, files: dict[float, str], num_seeds: int) -> dict[str, str]:
    """Return a line of the table, including the classifiers on the features of the pre-trained encoder."""
    chosen, seeds = best(share, start, files[share]), range(num_seeds)
    accuracies = [last_value(learn(share, start, chosen, files[share], seed), REPORTED) for seed in seeds]
    found = [features(start, seed, files) for seed in seeds] if start != "scratch" else []
    return {
        "labels": f"{100 * share:g}%",
        "start": start.replace("_", " "),
        "rate:": f"{chosen.rate:g}",
        "steps:": f"{chosen.steps:,}",
        "seeds:": ", ".join(map(str, seeds)),
        "test accuracy:": tables.percent(accuracies),
        "kNN, k = 20:": tables.percent([one[f"knn {share}"]["k20"] for one in found]),
        "linear probe:": tables.percent([one[f"linear_probe {share}"]["accuracy"] for one in found]),
    }


def write(rows: Sequence[dict[str, str]], one_run: str) -> None:
    """Print the table. Unless this is a trial, write the table and the machine of a run into the document."""
    table = formatting.markdown_table(list(rows[0]), [list(line.values()) for line in rows])
    sys.stdout.write(f"{table}\n\n")
    sys.stdout.flush()
    if flags.FLAGS.steps is None:
        tables.write_between(DOCUMENT, "few labels", f"{machine(one_run)}.\n\n{table}")


if __name__ == "__main__":
    cli.run(main)
