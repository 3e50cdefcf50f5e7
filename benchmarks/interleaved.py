"""Run the same work in several systems, with interleaved steps, so that disturbances affect all systems equally."""

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import logging

ROOT = Path(__file__).parents[1]
WORKERS = Path(__file__).with_name("workers")
LIMIT = 300.0  # seconds for building a system, with its first steps, and for its steps in all rounds


@dataclasses.dataclass(frozen=True)
class System:
    """System to measure.

    Attributes:
        name: Name in the results.
        command: Command that starts the process of the system. It uses the protocol of `workers/worker.py`.
        environment: Environment variables of the process, in addition to the variables of this process.
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
        ratio: Time divided by the time of the first system, median over the rounds.
        spread: Half the interquartile range of the times, relative to the median.
        peak_bytes: Peak resident memory of the process, including libraries.
        library_bytes: Resident memory after loading the libraries.
        note: Remark of the last step, such as the accuracy.
        rates: Rates that the system measured, such as the rates of the machine; medians over the rounds.
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
    """Return a system that is measured by a script of `workers/`.

    Args:
        name: Name of the system in the results.
        script: The script.
        python: Interpreter of the system's environment; None for the current interpreter.
        function: Name of the function in the script; None for `name`.
        work: Fields of `Work` in `workers/worker.py`.
        root: Checkout of keras_vit to measure; None for another package.
        environment: Further variables of the process.
    """
    # All packages that use TensorFlow get the operations that keras_vit turns on.
    shared = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1", "KERAS_BACKEND": "tensorflow"}
    variables = {**shared, **(environment or {})}
    variables["PYTHONPATH"] = "" if root is None else str(root)
    return System(name, (python or sys.executable, str(script), function or name, json.dumps(work or {})), variables)


def run(systems: Sequence[System], rounds: int) -> list[Result]:
    """Run one step of each system per round.

    If a system fails or takes longer than `LIMIT`, its result has an `error`, and the other systems continue.

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

    def succeeds(name: str, result: dict) -> bool:
        if "error" not in result:
            return True
        results[name].error = result["error"]
        logging.warning("%s failed: %s", name, result["error"])
        processes.pop(name).close()
        seconds.pop(name, None)
        return False

    try:
        for system in systems:
            logging.info("Building %s and running its first steps, at most %.0f s", system.name, LIMIT)
            processes[system.name] = _Process(system)
            result = processes[system.name].read()
            results[system.name].versions = result.get("versions", {})
            if succeeds(system.name, result):
                seconds[system.name] = []
        for index in range(rounds):
            for name in list(processes):
                result = processes[name].step()
                if result.get("seconds", 0.0) * rounds > LIMIT:
                    reason = f"left out: a step takes {result['seconds']:.3g} s, and {rounds} steps over {LIMIT:.0f} s"
                    result = {"error": reason}
                if succeeds(name, result):
                    seconds[name].append(result["seconds"])
                    for key in ("peak_bytes", "library_bytes", "note"):
                        setattr(results[name], key, result.get(key))
                    if "rates" in result:
                        rates.setdefault(name, []).append(result["rates"])
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
    """Process of a system. It runs a step for each line on its standard input."""

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
        """Return the next JSON line, or `{"error": ...}` if the process ended. Skip other output of libraries."""
        watchdog, started = threading.Timer(LIMIT, self._process.kill), time.monotonic()
        watchdog.start()
        try:
            for line in self._output:
                if line.startswith("{"):
                    return json.loads(line)
        finally:
            watchdog.cancel()
        if time.monotonic() - started >= LIMIT:
            return {"error": f"left out: no result after {LIMIT:.0f} s"}
        return {"error": f"the process ended with code {self._process.wait()}. {self._last_line()}".strip()}

    def step(self) -> dict:
        """Run a step and return its result."""
        with contextlib.suppress(BrokenPipeError):  # the process has ended; `read` returns the reason
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
