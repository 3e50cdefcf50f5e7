"""Races: the same work by several systems in turn, step by step, so that the machine's moods hit all alike."""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from absl import logging

_CONTESTANTS = Path(__file__).with_name("contestants.py")


@dataclasses.dataclass
class Result:
    """What one system reached.

    Attributes:
        system: Its name.
        images_per_second: Median over the rounds; None if it could not run.
        ratio: Median over the rounds of its seconds divided by the first system's: above 1 the first is ahead.
        peak_bytes: Largest resident memory of its process.
        error: Why it could not run, or None.
    """

    system: str
    images_per_second: float | None = None
    ratio: float | None = None
    peak_bytes: int | None = None
    error: str | None = None


class _Contestant:
    def __init__(self, system, python, task, model, batch, precision):
        self.system = system
        # The checkout comes along for this package's own process; peers have their environment to themselves.
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
        if system == "keras_vit":
            root = str(Path(__file__).parents[2])
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [python, str(_CONTESTANTS), system, task, model, str(batch), precision],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def read(self):
        """Returns the next JSON line, passing over what libraries print."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        return {"ready": False, "error": f"the process ended with code {self.process.wait()}"}

    def step(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()


def race(task, model, batch, precision, systems, rounds):
    """Runs the systems in turn.

    Args:
        task: `"inference"` or `"training"`.
        model: Name of a model in `contestants.MODELS`.
        batch: Images a step.
        precision: `"float32"` or `"bfloat16"`.
        systems: Dictionary from a system's name in `contestants.SYSTEMS` to the Python that has it; None is this one.
            The first is what the others are compared with.
        rounds: Steps that each system takes.

    Returns:
        A list of `Result`, in the order of `systems`.
    """
    running, results = {}, {name: Result(name) for name in systems}
    try:
        for name, python in systems.items():
            logging.info("Building %s for %s in %s", name, model, precision)
            contestant = _Contestant(name, python or sys.executable, task, model, batch, precision)
            running[name] = contestant
            answer = contestant.read()
            if not answer.get("ready"):
                results[name].error = answer.get("error")
                running.pop(name).close()
        seconds = {name: [] for name in running}
        for index in range(rounds):
            logging.info("Round %d of %d", index + 1, rounds)
            for name, contestant in running.items():
                answer = contestant.step()
                seconds[name].append(answer["seconds"])
                results[name].peak_bytes = answer["peak_bytes"]
    finally:
        for contestant in running.values():
            contestant.close()
    first = next(iter(systems))
    for name, times in seconds.items():
        results[name].images_per_second = batch / statistics.median(times)
        if first in seconds:
            results[name].ratio = statistics.median(
                own / other for own, other in zip(times, seconds[first], strict=True)
            )
    return list(results.values())


def table(title, results):
    """Returns the results as a Markdown table."""
    first = results[0].system
    lines = [
        f"### {title}",
        "",
        f"| system | images/s | {first} is faster by | peak memory |",
        "|---|---|---|---|",
    ]
    for result in results:
        if result.error:
            lines.append(f"| {result.system} | not run: {result.error} | | |")
            continue
        ratio = "" if result.ratio is None or result.system == first else f"{result.ratio:.2f} x"
        lines.append(
            f"| {result.system} | {result.images_per_second:.2f} | {ratio} | {result.peak_bytes / 1e9:.1f} GB |"
        )
    return "\n".join(lines)
