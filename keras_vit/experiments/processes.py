"""Processes side by side, which stop together."""

import dataclasses
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence

from absl import logging

from keras_vit.training.errors import Interrupted
from keras_vit.training.preemption import StopRequest

_SECONDS_BETWEEN_LOOKS = 0.05
_ADVICE = ("--verbosity=1 shows", "Pass --help")


@dataclasses.dataclass(frozen=True)
class Job:
    """A process to run, whose output is appended to the file `output`."""

    name: str
    command: Sequence[str]
    output: str
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


def run_all(
    jobs: Iterable[Job],
    parallel: int,
    started: Callable[[Job], None],
    ended: Callable[[Job, int, float], None],
) -> None:
    """Run processes in order, `parallel` at a time. On SIGTERM or Ctrl-C they are asked to stop and waited for.

    `started` is called with each job before it starts, `ended` with the job, its exit code and the seconds it took.
    After SIGTERM or SIGINT, `Interrupted` is raised when all processes have ended.
    """
    waiting, running = list(jobs), list[tuple[Job, subprocess.Popen, float]]()
    told = False
    with StopRequest() as stop:
        stop.defer()
        try:
            while running or (waiting and not stop):
                while waiting and len(running) < parallel and not stop:
                    job = waiting.pop(0)
                    started(job)
                    running.append((job, _start(job), time.monotonic()))
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                if stop and not told:
                    told = True
                    _signal(running, signal.SIGTERM)
                for entry in [entry for entry in running if entry[1].poll() is not None]:
                    running.remove(entry)
                    job, process, start = entry
                    ended(job, process.returncode, time.monotonic() - start)
        finally:  # a second Ctrl-C, or an error of a callback
            _signal(running, signal.SIGKILL)
            for _, process, _ in running:
                process.wait()
        if stop:
            raise Interrupted(f"Stopped by {stop.signal}. Start the same command again to resume.")


def last_line(path: str) -> str:
    """Return the last line of a file that says something, or an empty text."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.path.getsize(path) - 4096, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    told = [line.strip() for line in lines if line.strip() and not any(advice in line for advice in _ADVICE)]
    return re.sub(r"^[IWEF]\d{4} \S+ +\d+ \S+\] ", "", told[-1]) if told else ""


def _start(job: Job) -> subprocess.Popen:
    os.makedirs(os.path.dirname(job.output), exist_ok=True)
    logging.info("Started %s", job.name)
    with open(job.output, "ab") as output:
        return subprocess.Popen(
            list(job.command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **job.environment},
        )


def _signal(running: Sequence[tuple[Job, subprocess.Popen, float]], number: signal.Signals) -> None:
    for _, process, _ in running:
        if process.poll() is None:
            process.send_signal(number)
