"""Kills one of several workers with SIGKILL at random moments, and checks that it cost nothing.

    python -m tools.crash_workers --workdir=/tmp/crash --backend=jax --processes=4 --kills=20

Trains a small model on the digits without interruption, and then again and again, under the supervisor of
`keras-vit launch --on=local`, which starts all workers again after each kill. Every run must end with the weights and
metrics of the uninterrupted run, bit for bit. Every third kill comes at any moment after a start, the others during the
training.
"""

import argparse
import glob
import json
import os
import pathlib
import random
import runpy
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from tests import forked
from tests.on_jax import ON_JAX
from tests.training import worlds
from train.launching import local

STEPS = {"total_steps": 60, "eval_every": 20, "checkpoint_every": 4, "steps_per_loop": 1}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--backend", choices=("tensorflow", "jax"), default="tensorflow")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--each", type=int, default=1, help="number of kills in a run")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    options = parser.parse_args(arguments)
    directory, dice = pathlib.Path(options.workdir), random.Random(options.seed)
    shutil.rmtree(directory, ignore_errors=True)
    forked.ENVIRONMENT |= {**(ON_JAX if options.backend == "jax" else {}), "KERAS_BACKEND": options.backend}
    local.start_worker = Forked

    started = time.monotonic()
    train(directory / "whole", options.backend, options.processes)
    seconds = time.monotonic() - started
    print(f"{options.processes} workers on {options.backend}, uninterrupted: {seconds:.0f} s", flush=True)
    kills = 0
    while kills < options.kills:
        killer = Killer(
            directory / "killed", options.processes, dice, seconds, min(options.each, options.kills - kills)
        )
        train(directory / "killed", options.backend, options.processes, killer)
        worlds.assert_same_bits(*(worlds.final_weights(directory / name) for name in ("whole", "killed")))
        assert worlds.metrics(directory / "whole") == worlds.metrics(directory / "killed")
        kills += len(killer.done)
        print(f"the same weights in every bit after {kills} of {options.kills} kills", flush=True)
        shutil.rmtree(directory / "killed")


def train(directory: pathlib.Path, backend: str, processes: int, killer: "Killer | None" = None) -> None:
    """Train to the end under the supervisor."""
    if killer:
        killer.start()
    code = local.run(worlds.arguments(directory, **STEPS), processes, backend, f"{directory}/logs")
    assert code == 0, f"the run in {directory} ended with exit code {code}"


class Killer(threading.Thread):
    """Kills workers of a run, while the supervisor runs in the main thread. `done` describes each kill."""

    def __init__(self, directory: pathlib.Path, processes: int, dice: random.Random, seconds: float, kills: int):
        super().__init__(daemon=True)
        self.directory, self.dice, self.seconds = directory, dice, seconds
        self.workers = [dice.randrange(processes) for _ in range(kills)]
        self.steps = sorted(dice.randrange(4, STEPS["total_steps"] * 3 // 4) for _ in range(kills))
        self.done: list[str] = []

    def run(self) -> None:
        for index, (worker, step) in enumerate(zip(self.workers, self.steps, strict=True)):
            started = time.monotonic()
            if index % 3 == 1:
                time.sleep(self.dice.uniform(0, self.seconds))
            while index % 3 != 1 and self._saved() < step:
                time.sleep(0.01)
            time.sleep(self.dice.uniform(0, 0.3))
            newest, victim = self._saved(), Forked.workers[worker]
            victim.kill()
            text = f"killed worker {worker} after {time.monotonic() - started:.1f} s, last checkpoint {newest}"
            print(text, flush=True)
            self.done.append(text)
            while Forked.workers[worker] is victim:  # until all have started again
                time.sleep(0.1)

    def _saved(self) -> int:
        found = glob.glob(f"{self.directory}/checkpoints/ckpt-*.json")
        return max((int(pathlib.Path(path).stem.removeprefix("ckpt-")) for path in found), default=0)


class Forked:
    """A worker that is forked from a process which has imported TensorFlow, with the methods of `subprocess.Popen`."""

    workers: dict[int, "Forked"] = {}

    def __init__(self, arguments: Sequence[str], variables: Mapping[str, str], log: str):
        environment = {**os.environ, **forked.ENVIRONMENT, **variables}
        self.process = forked.start(_run, list(arguments), environment, log)
        self.workers[json.loads(variables["TF_CONFIG"])["task"]["index"]] = self

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> None:
        self.process.join()

    def kill(self) -> None:
        self.process.kill()

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


def _run(arguments: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    """Run `train.main` in a process that was forked."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in (1, 2):
        os.dup2(file, number)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["train.main", *arguments]
    runpy.run_module("train.main", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
