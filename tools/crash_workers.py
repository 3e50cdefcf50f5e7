"""Kill one of several workers with SIGKILL at random moments and check that the result does not change.

    python -m tools.crash_workers --workdir=/tmp/crash --backend=jax --processes=4 --kills=20

The program trains a small model on the digits once without interruption. Then it trains the same model repeatedly under
the supervisor of `keras-vit launch --target=local`, which restarts all workers after each kill. The final weights and
metrics of every run must equal those of the uninterrupted run, bit for bit. The first kill of a run happens during the
start, the others during training.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

from tests import forked
from tests.on_jax import ON_JAX
from tests.training import small_runs
from tools.crash import compare
from train.launching import local

STEPS = {
    "total_steps": 60,
    "eval_every": 30,
    "checkpoint_every": 4,
    "steps_per_loop": 1,
    "model.arguments.num_layers": 1,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--backend", choices=("tensorflow", "jax"), default="tensorflow")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--each", type=int, default=4, help="number of kills in each run")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    options = parser.parse_args(arguments)
    directory, dice = pathlib.Path(options.workdir), random.Random(options.seed)
    shutil.rmtree(directory, ignore_errors=True)
    forked.ENVIRONMENT |= {**(ON_JAX if options.backend == "jax" else {}), "KERAS_BACKEND": options.backend}
    forked.CONTEXT.set_forkserver_preload(["tensorflow", options.backend, "keras", "keras_vit.training"])
    local.start_worker = Forked  # type: ignore[assignment]

    started = time.monotonic()
    train(directory / "whole", options.backend, options.processes)
    seconds = time.monotonic() - started
    print(f"{options.processes} workers on {options.backend}, uninterrupted: {seconds:.0f} s", flush=True)
    kills = 0
    while kills < options.kills:
        steps = sorted(dice.randrange(4, STEPS["total_steps"] * 3 // 4) for _ in range(options.each - 1))
        delays = [dice.uniform(0, seconds / 2), *(dice.uniform(0, 0.3) for _ in steps)]
        plan = [Kill(dice.randrange(options.processes), *when) for when in zip([0, *steps], delays, strict=True)]
        done = train_and_kill(plan, directory / "killed", options.backend, options.processes)
        compare(directory / "whole", directory / "killed")
        kills += done
        print(f"the same weights in every bit after {kills} kills", flush=True)
        shutil.rmtree(directory / "killed")


def train(directory: pathlib.Path, backend: str, processes: int, *flags: str, **fields: Any) -> None:
    """Train to the end under the supervisor."""
    arguments = small_runs.arguments(directory, *flags, **{**STEPS, **fields})
    code = local.run(arguments, processes, backend, f"{directory}/logs")
    assert code == 0, f"the run in {directory} ended with exit code {code}"


class Kill(NamedTuple):
    """Kill of a worker, some seconds after the first checkpoint at or after a step. Step 0 is the start of the run."""

    worker: int
    step: int
    seconds: float


def train_and_kill(
    plan: Sequence[Kill], directory: pathlib.Path, backend: str, processes: int, *flags: str, **fields: Any
) -> int:
    """Train to the end under the supervisor, kill workers during training, and return the number of kills."""
    start, done = local.start_worker, list[Kill]()
    starter = Starter(start)
    with mock.patch.object(local, "start_worker", starter):
        threading.Thread(target=_kill, args=(plan, directory, starter.workers, done), daemon=True).start()
        train(directory, backend, processes, *flags, **fields)
    return len(done)


def _kill(plan: Sequence[Kill], directory: pathlib.Path, workers: dict[int, Any], done: list[Kill]) -> None:
    for kill in plan:
        while kill.worker not in workers or _newest(directory) < kill.step:
            time.sleep(0.002)
        time.sleep(kill.seconds)
        newest, victim = _newest(directory), workers[kill.worker]
        if victim.poll() is not None or newest == STEPS["total_steps"]:
            return  # training is complete
        victim.kill()
        done.append(kill)
        print(f"killed worker {kill.worker} with the checkpoint of step {newest}", flush=True)
        while workers[kill.worker] is victim:  # until all start again
            time.sleep(0.1)


def _newest(directory: pathlib.Path) -> int:
    """Return the step of the newest checkpoint, or 0 if no checkpoint exists."""
    names = [path.name for path in directory.glob("checkpoints/ckpt[-_]*")]  # TensorFlow or Orbax
    matches = [re.fullmatch(r"ckpt(?:-(\d+)\.json|_(\d+))", name) for name in names]
    return max((int(match[1] or match[2]) for match in matches if match), default=0)


class Starter:
    """Function that starts workers and stores them by index."""

    def __init__(self, start: Callable):
        self.start, self.workers = start, dict[int, Any]()

    def __call__(self, arguments: Sequence[str], variables: Mapping[str, str], log: str) -> Any:
        worker = self.start(arguments, variables, log)
        self.workers[json.loads(variables["TF_CONFIG"])["task"]["index"]] = worker
        return worker


class Forked:
    """Worker with the methods of `subprocess.Popen`, forked from a process that has already imported TensorFlow."""

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
    """Run `train.main` in a forked process."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in (1, 2):
        os.dup2(file, number)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    forked.run_module("train.main", arguments)


if __name__ == "__main__":
    main()
