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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests import forked
from tests.on_jax import ON_JAX
from tests.training import worlds
from tools.crash import compare
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
    starter = local.start_worker = Starter(Forked)

    started = time.monotonic()
    train(directory / "whole", options.backend, options.processes)
    seconds = time.monotonic() - started
    print(f"{options.processes} workers on {options.backend}, uninterrupted: {seconds:.0f} s", flush=True)
    kills = 0
    while kills < options.kills:
        steps = [dice.randrange(4, STEPS["total_steps"] * 3 // 4) for _ in range(options.each)]
        # 0 for any moment after the start
        steps = [0 if (kills + index) % 3 == 1 else step for index, step in enumerate(sorted(steps))]
        killer = Killer(starter, directory / "killed", options.processes, steps, dice, seconds)
        killer.start()
        train(directory / "killed", options.backend, options.processes)
        compare(directory / "whole", directory / "killed")
        kills += len(killer.done)
        print(f"the same weights in every bit after {kills} of {options.kills} kills", flush=True)
        shutil.rmtree(directory / "killed")


def train(directory: pathlib.Path, backend: str, processes: int, **fields: Any) -> None:
    """Train to the end under the supervisor."""
    arguments = worlds.arguments(directory, **{**STEPS, **fields})
    code = local.run(arguments, processes, backend, f"{directory}/logs")
    assert code == 0, f"the run in {directory} ended with exit code {code}"


class Starter:
    """Starts workers with a function, and remembers them by index."""

    def __init__(self, start: Callable):
        self.start, self.workers = start, dict[int, Any]()

    def __call__(self, arguments: Sequence[str], variables: Mapping[str, str], log: str) -> Any:
        worker = self.start(arguments, variables, log)
        self.workers[json.loads(variables["TF_CONFIG"])["task"]["index"]] = worker
        return worker


class Killer(threading.Thread):
    """Kills a worker after each of some steps, while the supervisor runs in the main thread.

    A step of 0 stands for any moment within `seconds` of the start. `done` describes the kills.
    """

    def __init__(
        self,
        starter: Starter,
        directory: pathlib.Path,
        processes: int,
        steps: Sequence[int],
        dice: random.Random,
        seconds: float = 0.0,
    ):
        super().__init__(daemon=True)
        self.starter, self.directory, self.steps, self.dice, self.seconds = starter, directory, steps, dice, seconds
        self.victims = [dice.randrange(processes) for _ in steps]
        self.done: list[str] = []

    def run(self) -> None:
        workers = self.starter.workers
        workers.clear()
        for victim, step in zip(self.victims, self.steps, strict=True):
            started = time.monotonic()
            while victim not in workers or self._saved() < step:
                time.sleep(0.01)
            time.sleep(self.dice.uniform(0, 0.3 if step else self.seconds))
            newest, killed = self._saved(), workers[victim]
            if killed.poll() is not None:
                return  # too late: the training is complete
            killed.kill()
            after = time.monotonic() - started
            self.done.append(f"killed worker {victim} after {after:.1f} s, with the checkpoint of step {newest}")
            print(self.done[-1], flush=True)
            while workers[victim] is killed:  # until all start again
                time.sleep(0.1)

    def _saved(self) -> int:
        found = glob.glob(f"{self.directory}/checkpoints/ckpt-*.json")
        return max((int(pathlib.Path(path).stem.removeprefix("ckpt-")) for path in found), default=0)


class Forked:
    """A worker that is forked from a process which has imported TensorFlow, with the methods of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], variables: Mapping[str, str], log: str):
        environment = {**os.environ, **forked.ENVIRONMENT, **variables}
        self.process = forked.start(_run, list(arguments), environment, log)

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
