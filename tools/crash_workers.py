"""Kills one of several workers with SIGKILL at random moments, and checks that it cost nothing.

    python -m tools.crash_workers --workdir=/tmp/crash --backend=jax --processes=4 --kills=20

Trains a small model on the digits without interruption, and then again for each kill, under the supervisor of
`keras-vit launch --on=local`, which starts all workers again. Every run must end with the weights and metrics of the
uninterrupted run, bit for bit. Half of the kills come at any moment from the start on, the others during the training.
"""

import argparse
import glob
import os
import pathlib
import random
import shutil
import signal
import threading
import time
from collections.abc import Sequence

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
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    options = parser.parse_args(arguments)
    directory, dice = pathlib.Path(options.workdir), random.Random(options.seed)
    shutil.rmtree(directory, ignore_errors=True)
    os.environ.update(ON_JAX if options.backend == "jax" else {})
    os.environ.update(CUDA_VISIBLE_DEVICES="-1", PYTHONPATH=str(worlds.ROOT))

    started = time.monotonic()
    train(directory / "whole", options.backend, options.processes)
    seconds = time.monotonic() - started
    print(f"{options.processes} workers on {options.backend}, uninterrupted: {seconds:.0f} s", flush=True)
    for count in range(1, options.kills + 1):
        killer = Killer(directory / "killed", dice.randrange(options.processes), dice, seconds, anytime=count % 2 == 0)
        train(directory / "killed", options.backend, options.processes, killer)
        worlds.assert_same_bits(*(worlds.final_weights(directory / name) for name in ("whole", "killed")))
        assert worlds.metrics(directory / "whole") == worlds.metrics(directory / "killed")
        print(f"kill {count} of {options.kills}: {killer.done}; the same weights in every bit", flush=True)
        shutil.rmtree(directory / "killed")


def train(directory: pathlib.Path, backend: str, processes: int, killer: "Killer | None" = None) -> None:
    """Train to the end under the supervisor."""
    if killer:
        killer.start()
    code = local.run(worlds.arguments(directory, **STEPS), processes, backend, f"{directory}/logs")
    assert code == 0, f"the run in {directory} ended with exit code {code}"


class Killer(threading.Thread):
    """Kills a worker once, while the supervisor runs in the main thread; `done` describes the kill."""

    def __init__(self, directory: pathlib.Path, worker: int, dice: random.Random, seconds: float, anytime: bool):
        super().__init__(daemon=True)
        self.directory, self.worker, self.done = directory, worker, "too late"
        self.delay = dice.uniform(0, seconds) if anytime else dice.uniform(0, 0.5)
        self.step = 0 if anytime else dice.randrange(STEPS["checkpoint_every"], STEPS["total_steps"] * 3 // 4)

    def run(self) -> None:
        started = time.monotonic()
        while self._saved() < self.step:
            time.sleep(0.01)
        time.sleep(self.delay)
        for process in children():
            place = pathlib.Path(f"/proc/{process}/environ").read_bytes()
            if f'"index": {self.worker}}}'.encode() in place:
                newest = self._saved()
                os.kill(process, signal.SIGKILL)
                self.done = f"worker {self.worker} after {time.monotonic() - started:.1f} s, last checkpoint {newest}"

    def _saved(self) -> int:
        found = glob.glob(f"{self.directory}/checkpoints/ckpt-*.json")
        return max((int(pathlib.Path(path).stem.removeprefix("ckpt-")) for path in found), default=0)


def children() -> list[int]:
    """Return the processes that the main thread started."""
    own = os.getpid()
    return [int(number) for number in pathlib.Path(f"/proc/{own}/task/{own}/children").read_text().split()]


if __name__ == "__main__":
    main()
