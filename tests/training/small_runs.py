"""Small training runs: a model of a few thousand weights on the digits, in this process or in a separate one."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest

from tests import forked, programs
from tests.cached_files import cached_directory

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPE = ROOT / "train" / "configs" / "digits.py"
TINY = {
    "total_steps": 12,
    "log_every": 2,
    "eval_every": 4,
    "checkpoint_every": 3,
    "model.arguments.hidden_size": 16,
    "model.arguments.num_layers": 2,
    "model.arguments.num_heads": 2,
    "model.arguments.mlp_dim": 16,
    "model.arguments.dropout_rate": 0.2,
    "model.arguments.drop_path_rate": 0.2,
    "data.batch_size": 16,
    "data.eval_batch_size": 180,
    "data.mixup": 0.0,
    "data.pp_train": "inception_crop(8, 70)|value_range(-1, 1)",
    "optim.ema_momentum": 0.9,
    "optim.schedule.warmup_steps": 2,
}
# Dropout depends on the replica, so that it is disabled where different numbers of devices are compared.
QUIET = {"model__arguments__dropout_rate": 0.0, "model__arguments__drop_path_rate": 0.0}


def arguments(workdir, *flags, **fields):
    """The arguments that train the tiny model: `fields` are recipe fields with `__` for the dot; None is left out."""
    fields = {**TINY, **{name.replace("__", "."): value for name, value in fields.items()}}
    overrides = [f"--config.{name}={value}" for name, value in fields.items() if value is not None]
    return [f"--config={RECIPE}", f"--workdir={workdir}", *overrides, *flags]


def command(workdir, *flags, **fields):
    """The command line of `arguments`."""
    return [sys.executable, "-m", "train.main", *arguments(workdir, *flags, **fields)]


def start(workdir, *flags, environment=None, **fields):
    """Starts the program in a separate process."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", **(environment or {})}
    if environment.get("KERAS_BACKEND") == "jax":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command(workdir, *flags, **fields), cwd=ROOT, env=environment, **pipes)
    return forked.Program(ROOT, "train.main", arguments(workdir, *flags, **fields), environment)


def train(workdir, *flags, expect=0, **fields):
    """Run the program in this process, without its figure, and return its output.

    That takes half the time of a separate process.
    """
    plots = "keras_vit.inspection.plots"
    with mock.patch(f"{plots}.draw_report"), mock.patch(f"{plots}.save"):
        code, output = programs.run("train.main", *arguments(workdir, *flags, **fields))
    assert code == expect, f"exit code {code} instead of {expect}:\n{output[-4000:]}"
    return output


def train_alone(workdir, *flags, expect=0, **fields):
    """Run the program in a separate process, for other devices or another backend, and return its output."""
    process = start(workdir, *flags, **fields)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == expect, f"exit code {process.returncode} instead of {expect}:\n{output[-4000:]}"
    return output


def quiet_run(tmp_path_factory):
    """The directory of a run on one device without dropout, created once for all tests."""
    return cached_directory(tmp_path_factory, "quiet", lambda directory: train(directory, **QUIET))


def metrics(workdir):
    """The lines of metrics.jsonl without what depends on the clock."""
    lines = [json.loads(line) for line in (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "images_per_second"} for line in lines]


def rewind(workdir, copy, step):
    """Copies a finished run of which a step is the last one before the end, as if it had been killed after it."""
    last = [f"ckpt*{steps}*" for steps in range(step + 1, TINY["total_steps"] + 1)]
    shutil.copytree(workdir, copy, ignore=shutil.ignore_patterns("model.keras", *last))


def assert_same_metrics(first, second):
    """Two runs report the same metrics, whatever the devices."""
    one, two = metrics(first), metrics(second)
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for line, other in zip(one, two, strict=True):
        for name in {"loss", "grad_norm", "eval_loss", "learning_rate", "examples"} & set(line):
            assert line[name] == pytest.approx(other[name], rel=1e-4)  # another order of summation in float32


def final_weights(workdir):
    """The weights in model.keras and its moving statistics, by path."""
    import keras

    import keras_vit  # noqa: F401  registers the layers

    model = keras.models.load_model(pathlib.Path(workdir) / "model.keras", compile=False)
    return {weight.path: np.asarray(weight) for weight in model.weights}


def assert_same_bits(first, second):
    """Two sets of weights agree in every bit."""
    assert set(first) == set(second)
    different = [path for path in first if first[path].tobytes() != second[path].tobytes()]
    assert not different, f"{len(different)} of {len(first)} weights differ, first {different[0]}"
