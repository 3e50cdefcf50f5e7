"""Makes the tables of docs/results.md: trains and evaluates several models on Fashion-MNIST, with several seeds.

    python -m train.results --workdir=runs/results                      # everything, and writes docs/results.md
    python -m train.results --workdir=runs/results --only=bit --seeds=1
    python -m train.results --workdir=/tmp/try --steps=3 --seeds=1      # a trial, which writes no document

The tables have all runs of the directory that are finished.
Stopped, it goes on where it was: a finished run is not repeated, an unfinished one resumes. Times are the processor's
for the training command, all cores added up, so that what else the machine does hardly matters.
"""

import json
import os
import platform
import re
import subprocess
import sys

import numpy as np
from absl import flags, logging

from keras_vit import _io, data, program
from keras_vit.benchmarking import results
from keras_vit.training import progress, run_directory

MODELS = {
    "hybrid": ("train/configs/fashion_mnist.py", "hybrid: ResNet root and two units, then ViT"),
    "bit": ("train/configs/fashion_mnist_models.py:bit", "BiT, two units"),
}
EVALUATORS = ("classification", "fewshot(shots=(10,))", "knn(neighbours=(20,))")
TRANSFER = "train/configs/fashion_mnist_transfer.py"
# Stage of the recipe, what is changed in it, and what the table says.
TRANSFER_RUNS = {
    "finetune": (
        "finetune",
        ["--config.model.checkpoint={pretrained}/model.keras"],
        "fine-tuned from eight classes at 28 pixels",
    ),
    "scratch": ("scratch", [], "from scratch, rate 0.002"),
    "scratch_low_rate": ("scratch", ["--config.optim.learning_rate=0.0005"], "from scratch, rate 0.0005"),
}
HELD_BACK = (0, 6)  # as in the recipe: T-shirt/top, Shirt
EXAMPLES = 1_000  # of the two classes together
DOCUMENT = "docs/results.md"
CPU_SECONDS = "cpu_seconds.json"

flags.DEFINE_string("workdir", None, "Where everything is written; what is there is not repeated.")
flags.DEFINE_multi_enum("only", [], [*MODELS, "transfer"], "Do only this; may be repeated.")
flags.DEFINE_integer("seeds", 3, "Number of seeds, 0, 1, 2 ...", 1)
flags.DEFINE_integer("steps", None, "Try it out with so many steps; no document is written.", 1)


def main(argv):
    del argv
    options = flags.FLAGS
    if not options.workdir:
        raise ValueError("--workdir is missing: the directory for everything that the runs write.")
    if options.steps is None and not os.path.exists(DOCUMENT):
        raise ValueError(f"{DOCUMENT}, where the tables go, is not here. Start it in the root of a checkout.")
    chosen = options.only or [*MODELS, "transfer"]
    for seed in range(options.seeds):
        for name in chosen:
            if name == "transfer":
                run_transfer(seed)
            else:
                config, _ = MODELS[name]
                directory = run_path(name, seed)
                train(config, directory, seed)
                evaluate(directory)
    report()
    return 0


# ---- running ---------------------------------------------------------------------------------------------------------


def train(config, directory, seed, extra=()):
    """Runs the training program unless it is done, and adds up the processor time that it took."""
    if os.path.exists(os.path.join(directory, run_directory.MODEL)):
        return
    arguments = [f"--config={config}", f"--workdir={directory}", f"--config.seed={seed}", *extra]
    if flags.FLAGS.steps is not None:
        arguments.append(f"--config.total_steps={flags.FLAGS.steps}")
    started = cpu_seconds()
    try:
        run_program("main", arguments)
    finally:
        seconds = read_json(os.path.join(directory, CPU_SECONDS), 0.0) + cpu_seconds() - started
        os.makedirs(directory, exist_ok=True)
        _io.write_json(os.path.join(directory, CPU_SECONDS), seconds)


def evaluate(directory):
    """Runs the evaluation program unless it is done."""
    path = os.path.join(directory, "evaluators.json")
    if not os.path.exists(path):
        flags_of_each = [f"--evaluators={evaluator}" for evaluator in EVALUATORS]
        output = run_program("evaluate", [f"--model={directory}", "--batch_size=500", "--json", *flags_of_each])
        _io.write_json(path, json.loads(output))


def run_transfer(seed):
    """Pre-trains on eight classes, then learns the other two with and without what was learned."""
    folder = os.path.join(flags.FLAGS.workdir, "data")
    make_data(folder)
    pretrained = run_path("pretrain", seed)
    train(f"{TRANSFER}:pretrain,{folder}", pretrained, seed)
    for name, (stage, extra, _) in TRANSFER_RUNS.items():
        extra = [argument.format(pretrained=pretrained) for argument in extra]
        train(f"{TRANSFER}:{stage},{folder}", run_path(name, seed), seed, extra)


def make_data(folder):
    """Writes eight.npz with eight classes of Fashion-MNIST, and two.npz with few examples of the other two."""
    if os.path.exists(os.path.join(folder, "two.npz")):
        return
    os.makedirs(folder, exist_ok=True)
    sources = {split: data.open_source("fashion_mnist", split=split) for split in ("train", "test")}
    names = sources["train"].class_names
    kept = [number for number in range(len(names)) if number not in HELD_BACK]
    for file, classes, limit in (("eight.npz", kept, None), ("two.npz", list(HELD_BACK), EXAMPLES // len(HELD_BACK))):
        arrays = {"class_names": np.asarray([names[number] for number in classes])}
        for split, source in sources.items():
            chosen = [np.flatnonzero(source.labels() == number) for number in classes]
            chosen = np.sort(np.concatenate([some[: limit if split == "train" else None] for some in chosen]))
            arrays[f"x_{split}"] = source.images[chosen, ..., 0]
            arrays[f"y_{split}"] = np.searchsorted(classes, source.labels()[chosen])
        temporary = os.path.join(folder, f".{file}")
        np.savez_compressed(temporary, **arrays)
        os.replace(temporary, os.path.join(folder, file))


def run_program(name, arguments):
    """Runs another program of this package and returns what it wrote; its log goes to ours."""
    module = f"{__package__ or 'train'}.{name}"
    logging.info("%s %s", module, " ".join(arguments))
    return subprocess.run([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, check=True).stdout


def cpu_seconds():
    """Processor time of the programs that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def run_path(name, seed, *file):
    return os.path.join(flags.FLAGS.workdir, f"{name}_{seed}", *file)


# ---- reporting -------------------------------------------------------------------------------------------------------


def report():
    """Prints the tables of all runs that are finished, whoever began them, and replaces those of the document."""
    seeds_of = {name: finished(name) for name in (*MODELS, *TRANSFER_RUNS)}
    compared = sorted(set.intersection(*(set(seeds_of[name]) for name in TRANSFER_RUNS)))
    rows = {
        "models": [model_row(name, seeds_of[name]) for name in MODELS if seeds_of[name]],
        "transfer": [transfer_row(name, compared) for name in TRANSFER_RUNS if compared],
    }
    first = next(name for name in seeds_of if seeds_of[name])
    shown_machine = machine(run_path(first, seeds_of[first][0]))
    for name, some in rows.items():
        if some:
            text = results.table(some)
            sys.stdout.write(text + "\n\n")
            if flags.FLAGS.steps is None:
                results.write_between(DOCUMENT, name, f"{shown_machine}\n\n{text}")
                logging.info("Wrote the table of %s in %s", name, DOCUMENT)


def finished(name):
    """The seeds with which a model was trained, and evaluated where that is a step of its own."""
    last = "evaluators.json" if name in MODELS else run_directory.MODEL
    found = (re.fullmatch(rf"{name}_(\d+)", directory) for directory in os.listdir(flags.FLAGS.workdir))
    return sorted(int(match[1]) for match in found if match and os.path.exists(run_path(name, match[1], last)))


def model_row(name, seeds):
    """Mean and spread of a model over the seeds."""
    config, description = MODELS[name]
    found = [read_json(run_path(name, seed, "evaluators.json")) for seed in seeds]
    return {
        "model": description,
        "`--config`": f"`{config}`",
        **costs(name, seeds),
        "test accuracy": results.percent([one["classification"]["accuracy"] for one in found]),
        "10-shot linear": results.percent([one["fewshot"]["10shot"] for one in found]),
        "kNN, k = 20": results.percent([one["knn"]["k20"] for one in found]),
    }


def transfer_row(name, seeds):
    """Mean and spread of the test accuracy with or without pre-training."""
    return {
        "T-shirt or shirt, at 56 pixels": TRANSFER_RUNS[name][2],
        **costs(name, seeds),
        "test accuracy": results.percent([last_accuracy(run_path(name, seed)) for seed in seeds]),
    }


def costs(name, seeds):
    """Columns that all tables have."""
    steps = {run_directory.read_config(run_path(name, seed))["recipe"]["total_steps"] for seed in seeds}
    if len(steps) > 1:
        raise ValueError(
            f"The runs of {name} in {flags.FLAGS.workdir} have different numbers of steps: {sorted(steps)}. "
            "Expected one number: delete the directories of an older recipe, they are then trained again."
        )
    minutes = [read_json(run_path(name, seed, CPU_SECONDS)) / 60 for seed in seeds]
    return {
        "steps": f"{steps.pop():,}",
        "CPU minutes a run": f"{np.mean(minutes):.1f}",
        "seeds": ", ".join(map(str, seeds)),
    }


def last_accuracy(directory):
    lines = progress.read_metrics(os.path.join(directory, run_directory.METRICS))
    return [line["eval_accuracy"] for line in lines if "eval_accuracy" in line][-1]


def machine(directory):
    """The machine, and the versions with which a run was made."""
    versions = run_directory.read_config(directory)["versions"]
    shown = [f"{name} {versions[name]}" for name in ("tensorflow", "tensorflow-cpu", "keras") if name in versions]
    return f"{os.cpu_count()} cores, {processor()}, {', '.join(shown)}."


def processor():
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_json(path, default=None):
    if default is not None and not os.path.exists(path):
        return default
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def run():
    program.run(main)


if __name__ == "__main__":
    run()
