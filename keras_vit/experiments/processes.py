"""Processes side by side, which stop together."""

import dataclasses
import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence

from absl import logging

from keras_vit import _io
from keras_vit.training.errors import Interrupted
from keras_vit.training.preemption import StopRequest

_SECONDS_BETWEEN_LOOKS = 0.05
_ADVICE = "--verbosity=1 shows"  # the line after an error


@dataclasses.dataclass(frozen=True)
class Job:
    """A process to run, whose output is appended to the file `output`."""

    name: str
    command: Sequence[str]
    output: str


def run_all(jobs: Iterable[Job], parallel: int) -> Iterator[tuple[Job, int]]:
    """Run processes in order, `parallel` at a time, and yield each with its exit code when it ends.

    On SIGTERM or Ctrl-C they are asked to stop and waited for; then `Interrupted` is raised.
    """
    waiting, running = list(jobs), dict[subprocess.Popen, Job]()
    told = False
    with StopRequest() as stop:
        stop.defer()
        try:
            while running or (waiting and not stop):
                while waiting and len(running) < parallel and not stop:
                    job = waiting.pop(0)
                    running[_start(job)] = job
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                if stop and not told:
                    told = True
                    for process in running:
                        process.terminate()
                for process in [process for process in running if process.poll() is not None]:
                    yield running.pop(process), process.returncode
        finally:  # a second Ctrl-C, or an error of the caller
            for process in running:
                process.kill()
                process.wait()
        if stop:
            raise Interrupted(f"Stopped by {stop.signal}. Start the same command again to resume.")


def last_line(path: str) -> str:
    """Return the last line of a program's output, without the advice after an error; empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.path.getsize(path) - 4096, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    told = [line.strip() for line in lines if line.strip() and _ADVICE not in line]
    return re.sub(r"^(error: |[IWEF]\d{4} \S+ +\d+ \S+\] )", "", told[-1]) if told else ""


def _start(job: Job) -> subprocess.Popen:
    _io.make_directory(os.path.dirname(job.output))
    logging.info("Started %s", job.name)
    with open(job.output, "ab") as output:
        return subprocess.Popen(job.command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
