"""Kill a training run with SIGKILL at random moments and check that the result does not change.

    python -m tools.crash --kills=20 --workdir=/tmp/crash -- --config.total_steps=300

The program trains the digits recipe once without interruption. Then it trains the same recipe again, and kills and
restarts the run at random moments. The first kill, and every third kill after it, waits until a checkpoint is being
written. Each finished run must have the same weights as the uninterrupted run, bit for bit, and the same metrics, line
by line. Arguments after `--` are passed to `train.main`.
"""

import argparse
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from tests.training import small_runs


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("rest", nargs="*", help="flags of train.main")
    options = parser.parse_args(arguments)
    command = [sys.executable, "-m", "train.main", f"--config={small_runs.RECIPE}", *options.rest]
    report(crash(pathlib.Path(options.workdir), command, options.kills, random.Random(options.seed)))


def crash(
    workdir: pathlib.Path,
    command: Sequence[str],
    kills: int,
    dice: random.Random,
    say: Callable[[str], None] = print,
    whole: pathlib.Path | None = None,
) -> int:
    """Kill and restart runs, compare each finished run with the uninterrupted run, and return the number of runs.

    Args:
        workdir: Directory for the runs. It is deleted first.
        command: Command of the program, without `--workdir`.
        kills: Number of kills.
        dice: Random generator of the moments.
        say: Function that receives a line about each kill.
        whole: Directory of an uninterrupted run of the command that takes about ten seconds. If None, the function
            trains an uninterrupted run first.
    """
    shutil.rmtree(workdir, ignore_errors=True)
    killed, seconds = workdir / "killed", 10.0
    if whole is None:
        whole, started = workdir / "whole", time.monotonic()
        run_to_end(command, whole)
        seconds = time.monotonic() - started
    finished = 0
    for count in range(1, kills + 1):
        process = start(command, killed)
        if count % 3 == 1:
            moment = "in the middle of a checkpoint" if wait_for_write(process, killed) else None
        else:
            delay = dice.uniform(0, seconds)
            moment = f"after {delay:.1f} s" if not ends_within(process, delay) else None
        if moment:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        saved = sorted(path.stem for path in killed.glob("checkpoints/ckpt-*.json"))
        say(f"kill {count} of {kills}: {moment or 'too late, the run was finished'}; complete checkpoints: {saved}")
        if not moment:
            assert process.returncode == 0, process.returncode
            compare(whole, killed)
            finished += 1
            shutil.rmtree(killed)
    run_to_end(command, killed)
    compare(whole, killed)
    return finished + 1


def report(finished: int) -> None:
    print(f"{finished} interrupted runs ended with the very weights of the uninterrupted one.")


def start(command: Sequence[str], directory: pathlib.Path) -> subprocess.Popen:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.Popen(
        [*command, f"--workdir={directory}"],
        cwd=small_runs.ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def run_to_end(command: Sequence[str], directory: pathlib.Path) -> None:
    code = start(command, directory).wait(timeout=3600)
    assert code == 0, f"the run in {directory} ended with exit code {code}"


def ends_within(process: subprocess.Popen, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def wait_for_write(process: subprocess.Popen, directory: pathlib.Path) -> bool:
    """Wait until a checkpoint is being written: until a temporary file or an index without its manifest exists."""
    while process.poll() is None:
        names = set(os.listdir(directory / "checkpoints")) if (directory / "checkpoints").is_dir() else set()
        unfinished = {f"{name[:-6]}.json" for name in names if name.endswith(".index")} - names
        if unfinished or any("temp" in name for name in names):
            return True
        time.sleep(0.001)
    return False


def compare(whole: pathlib.Path, killed: pathlib.Path) -> None:
    """Raise an error if the final weights or the metrics of two runs differ."""
    small_runs.assert_same_bits(small_runs.final_weights(whole), small_runs.final_weights(killed))
    assert small_runs.metrics(whole) == small_runs.metrics(killed)


if __name__ == "__main__":
    main()
