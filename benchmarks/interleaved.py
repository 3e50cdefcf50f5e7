"""Run the same work in several systems, interleaved step by step, so that a slow machine slows all of them."""

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import logging

ROOT = Path(__file__).parents[1]
WORKERS = Path(__file__).with_name("workers")
_TIMEOUT = 1800.0  # seconds after which a step counts as hanging


@dataclasses.dataclass(frozen=True)
class System:
    """A system to measure.

    Attributes:
        name: Its name in the results.
        command: Command that starts its process, which answers as `workers/worker.py` does.
        environment: Variables of its process, in addition to those of this one.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Result:
    """Measurements of one system.

    Attributes:
        system: Name of the system.
        seconds: Median time of a step over the rounds; None if the system failed.
        ratio: Median over the rounds of its time divided by the first system's.
        spread: Half the interquartile range of its times, relative to the median.
        peak_bytes: Peak resident memory of its process, libraries included.
        library_bytes: Resident memory after its libraries were loaded.
        note: Remark of the last step, such as the accuracy.
        rates: Rates that the system measured, such as those of the machine; medians over the rounds.
        versions: Versions of the packages.
        error: Reason of a failure, or None.
    """

    system: str
    seconds: float | None = None
    ratio: float | None = None
    spread: float | None = None
    peak_bytes: int | None = None
    library_bytes: int | None = None
    note: str | None = None
    rates: dict[str, float] | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    error: str | None = None


def worker(
    name: str,
    script: Path,
    *,
    python: str | None = None,
    function: str | None = None,
    work: Mapping | None = None,
    root: Path | None = ROOT,
    environment: Mapping[str, str] | None = None,
) -> System:
    """Return the system that a script of `workers/` measures.

    Args:
        name: Name of the system in the results.
        script: The script.
        python: Interpreter of the environment that holds the system; None for this one.
        function: Name of the function in the script; None for `name`.
        work: Fields of `workers/worker.py`'s `Work`.
        root: Checkout of keras_vit to measure; None for another package.
        environment: Further variables of the process.
    """
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", **(environment or {})}
    variables["PYTHONPATH"] = "" if root is None else str(root)
    return System(name, (python or sys.executable, str(script), function or name, json.dumps(work or {})), variables)


def run(systems: Sequence[System], rounds: int) -> list[Result]:
    """Run one step of each system per round.

    A system that fails gets an `error`; the others continue.

    Args:
        systems: The systems. Ratios are relative to the first one.
        rounds: Number of rounds.

    Returns:
        The results in the order of the systems.
    """
    results = {system.name: Result(system.name) for system in systems}
    processes: dict[str, _Process] = {}
    seconds: dict[str, list[float]] = {}
    rates: dict[str, list[dict[str, float]]] = {}

    def succeeds(name: str, answer: dict) -> bool:
        if "error" not in answer:
            return True
        results[name].error = answer["error"]
        logging.warning("%s failed: %s", name, answer["error"])
        processes.pop(name).close()
        seconds.pop(name, None)
        return False

    try:
        for system in systems:
            logging.info("Building %s", system.name)
            processes[system.name] = _Process(system)
            answer = processes[system.name].read()
            results[system.name].versions = answer.get("versions", {})
            if succeeds(system.name, answer):
                seconds[system.name] = []
        for index in range(rounds):
            for name in list(processes):
                answer = processes[name].step()
                if succeeds(name, answer):
                    seconds[name].append(answer["seconds"])
                    for key in ("peak_bytes", "library_bytes", "note"):
                        setattr(results[name], key, answer.get(key))
                    if "rates" in answer:
                        rates.setdefault(name, []).append(answer["rates"])
            last = ", ".join(f"{name} {times[-1]:.3g} s" for name, times in seconds.items())
            logging.info("Round %d of %d: %s", index + 1, rounds, last)
    finally:
        for process in processes.values():
            process.close()
    first = seconds.get(systems[0].name)
    for name, times in seconds.items():
        _summarize(results[name], times, first)
    for name, rounds_of in rates.items():
        results[name].rates = {rate: statistics.median(one[rate] for one in rounds_of) for rate in rounds_of[0]}
    return list(results.values())


def _summarize(result: Result, times: list[float], first: list[float] | None) -> None:
    result.seconds = statistics.median(times)
    if len(times) > 2:
        lower, _, upper = statistics.quantiles(times, n=4)
        result.spread = (upper - lower) / 2 / result.seconds
    if first:
        result.ratio = statistics.median(own / other for own, other in zip(times, first, strict=True))


class _Process:
    """Process of a system, which runs one step for each line that it receives."""

    def __init__(self, system: System):
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed in close()
        self._process = subprocess.Popen(
            system.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, **system.environment},
        )
        assert self._process.stdin and self._process.stdout
        self._input, self._output = self._process.stdin, self._process.stdout

    def read(self) -> dict:
        """Return the next JSON line, skipping what libraries print, or `{"error": ...}` if the process ended."""
        watchdog = threading.Timer(_TIMEOUT, self._process.kill)
        watchdog.start()
        try:
            for line in self._output:
                if line.startswith("{"):
                    return json.loads(line)
        finally:
            watchdog.cancel()
        return {"error": f"the process ended with code {self._process.wait()}. {self._last_line()}".strip()}

    def step(self) -> dict:
        """Run a step and return its answer."""
        with contextlib.suppress(BrokenPipeError):  # the process has ended; reading says why
            self._input.write("go\n")
            self._input.flush()
        return self.read()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._output, self._stderr):
            pipe.close()
        with contextlib.suppress(BrokenPipeError):
            self._input.close()

    def _last_line(self) -> str:
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr if line.strip()]
        return lines[-1][:300] if lines else ""
