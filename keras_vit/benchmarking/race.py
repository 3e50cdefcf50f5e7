"""Races: the same work by several systems in turn, step by step, so that the machine's moods hit all alike."""

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from absl import logging

CONTESTANTS = Path(__file__).with_name("contestants.py")
ROOT = Path(__file__).parents[2]
_LONGEST_STEP = 1800.0  # seconds after which a contestant is taken to hang


@dataclasses.dataclass(frozen=True)
class Entrant:
    """A system that takes part.

    Attributes:
        name: What it is called in the results.
        command: What starts its process, which must speak as `contestants.serve` does.
        environment: Variables of its process beside this one's.
    """

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Result:
    """What one system reached.

    Attributes:
        system: Its name.
        seconds: Median over the rounds of a step; None if it could not run.
        ratio: Median over the rounds of its seconds divided by the first system's: above 1 the first is ahead.
        spread: Half the distance of the quartiles of its seconds, as a share of the median.
        peak_bytes: Largest resident memory of its process, the libraries included.
        library_bytes: What of it the libraries took when they had been loaded.
        note: What it said of its step, such as the accuracy it came to.
        versions: Of the packages it used.
        error: Why it could not run, or None.
    """

    system: str
    seconds: float | None = None
    ratio: float | None = None
    spread: float | None = None
    peak_bytes: int | None = None
    library_bytes: int | None = None
    note: str | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    error: str | None = None


def entrant(name, python=None, script=CONTESTANTS, system=None, work=None, root=ROOT, environment=None):
    """Returns an entrant that runs a contestant's script.

    Args:
        name: What it is called in the results.
        python: The Python of the environment that holds it; None for this one.
        script: The script.
        system: Its name in the script; None for `name`.
        work: What it does, a dictionary that JSON can hold; see the script.
        root: Checkout of this package for its process; None for a peer, which has its environment to itself.
        environment: Further variables of its process.
    """
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", **(environment or {})}
    variables["PYTHONPATH"] = "" if root is None else str(root)
    command = (python or sys.executable, str(script), system or name, json.dumps(work or {}))
    return Entrant(name, command, variables)


class _Contestant:
    """A process that runs a step for each line it is sent."""

    def __init__(self, entrant):
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in close()
        self.process = subprocess.Popen(
            entrant.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, **entrant.environment},
        )

    def read(self):
        """Returns the next JSON line, passing over what libraries print; or `{"error": ...}` if there is none."""
        watchdog = threading.Timer(_LONGEST_STEP, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
        finally:
            watchdog.cancel()
        return {"error": f"the process ended with code {self.process.wait()}. {self._last_words()}".strip()}

    def _last_words(self):
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr if line.strip()]
        return lines[-1][:300] if lines else ""

    def step(self):
        with contextlib.suppress(BrokenPipeError):  # it has ended, which reading tells
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self._stderr):
            pipe.close()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


def race(entrants, rounds):
    """Runs systems in turn.

    Args:
        entrants: The systems; the first is what the others are compared with.
        rounds: Steps that each system takes.

    Returns:
        A list of `Result`, in the order of `entrants`. A system that fails has its `error` set; the others go on.
    """
    running, results, seconds = {}, {entrant.name: Result(entrant.name) for entrant in entrants}, {}

    def fail(name, answer):
        results[name].error = answer.get("error") or "it gave no answer"
        logging.warning("%s failed: %s", name, results[name].error)
        running.pop(name).close()
        seconds.pop(name, None)

    try:
        for entrant in entrants:
            logging.info("Building %s", entrant.name)
            running[entrant.name] = _Contestant(entrant)
            answer = running[entrant.name].read()
            results[entrant.name].versions = answer.get("versions", {})
            if "error" in answer:
                fail(entrant.name, answer)
            else:
                seconds[entrant.name] = []
        for index in range(rounds):
            for name in list(running):
                answer = running[name].step()
                if "error" in answer:
                    fail(name, answer)
                    continue
                seconds[name].append(answer["seconds"])
                results[name].peak_bytes = answer.get("peak_bytes")
                results[name].library_bytes = answer.get("library_bytes")
                results[name].note = answer.get("note")
            logging.info("Round %d of %d: %s", index + 1, rounds, _last_round(seconds))
    finally:
        for contestant in running.values():
            contestant.close()
    first = entrants[0].name
    for name, times in seconds.items():
        result = results[name]
        result.seconds = statistics.median(times)
        if len(times) > 2:
            lower, _, upper = statistics.quantiles(times, n=4)
            result.spread = (upper - lower) / 2 / result.seconds
        if first in seconds:
            result.ratio = statistics.median(own / other for own, other in zip(times, seconds[first], strict=True))
    return list(results.values())


def _last_round(seconds):
    return ", ".join(f"{name} {times[-1]:.3g} s" for name, times in seconds.items())


def table(results, batch):
    """Returns the results as a Markdown table.

    Args:
        results: A list of `Result`, the first being what the others were compared with.
        batch: Images a step.
    """
    first = results[0].system
    lines = [f"| system | images/s | {first} is faster by | peak memory |", "|---|---:|---:|---:|"]
    for result in results:
        if result.error:
            lines.append(f"| {result.system} | not run: {result.error} | | |")
            continue
        ratio = "" if result.ratio is None or result.system == first else f"{result.ratio:.2f} x"
        speed = batch / result.seconds
        lines.append(f"| {result.system} | {speed:.2f} | {ratio} | {result.peak_bytes / 1e9:.1f} GB |")
    return "\n".join(lines)
