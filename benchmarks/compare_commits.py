"""Compare the speed and memory of two commits of this package, with interleaved steps in one run.

    python -m benchmarks.compare_commits main HEAD
    python -m benchmarks.compare_commits v0.1 HEAD --rows=inference-1,training-float32 --tolerance=0.02

The program extracts both commits to temporary directories and measures them with the workers of this checkout. The exit
code is 1 if the second commit takes more time or memory than the first commit and exceeds the tolerance.
"""

import dataclasses
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from benchmarks import interleaved
from benchmarks import main as program
from benchmarks.interleaved import ROOT, Result
from benchmarks.rows import Row
from keras_vit.util import formatting

DEFAULT = ("inference-16-float32", "inference-1-bfloat16", "training-float32", "import-jax", "build")

flags.DEFINE_float("tolerance", 0.05, "Accepted relative increase in time and memory.", lower_bound=0.0)


def extract(commit: str, directory: Path) -> str:
    """Extract the package at a commit into a directory and return the commit's short name.

    Raises:
        ValueError: If the commit does not exist.
    """
    done = subprocess.run(["git", "archive", commit, "keras_vit"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"{commit!r} is not a commit of {ROOT}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(directory, filter="data")
    name = ["git", "rev-parse", "--short=10", commit]
    return subprocess.run(name, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def pairs(row: Row, directories: dict[str, Path], python_of: Any) -> list[tuple[interleaved.System, ...]]:
    """Pair the systems of this package at both commits, for each system of a row.

    Args:
        row: The row. Its peers are ignored.
        directories: The two extracted commits by name.
        python_of: Function from the name of an environment to its interpreter.
    """
    row = dataclasses.replace(row, peers=())
    systems = [
        [dataclasses.replace(system, name=f"{system.name} at {name}") for system in row.systems(python_of, root)]
        for name, root in directories.items()
    ]
    return list(zip(*systems, strict=True))


def regression(first: Result, second: Result, tolerance: float) -> str:
    """Describe the regression of the second result, or return an empty string."""
    if second.error or first.error:
        return f"fails: {second.error}" if second.error and not first.error else ""
    worse = []
    if second.ratio is not None and second.ratio > 1 + tolerance:
        worse.append(f"{100 * (second.ratio - 1):.0f}% more time")
    if first.peak_bytes and (second.peak_bytes or 0) > first.peak_bytes * (1 + tolerance):
        worse.append(f"{100 * ((second.peak_bytes or 0) / first.peak_bytes - 1):.0f}% more memory")
    return ", ".join(worse)


def main(argv: Sequence[str]) -> None:
    options = flags.FLAGS
    if len(argv) != 3:
        raise app.UsageError("Expected two commits: python -m benchmarks.compare_commits A B")
    lines, regressions = [], []
    python_of = program.Environments(options)
    with tempfile.TemporaryDirectory() as folder:
        directories = {}
        for side, commit in zip("ab", argv[1:], strict=True):
            directories[f"{side} ({extract(commit, Path(folder) / side)})"] = Path(folder) / side
        for row in program.choose(options.rows or DEFAULT):
            logging.info("%s", row.name)
            for pair in pairs(row.with_files(python_of.directory), directories, python_of):
                first, second = interleaved.run(pair, options.rounds or row.rounds)
                worse = regression(first, second, options.tolerance)
                name = f"{row.name}: {first.system.split(' at ')[0]}"
                regressions += [f"{name}: {worse}"] if worse else []
                ratio = None if second.ratio is None else f"{second.ratio:.3f}"
                lines.append([name, _cell(first), _cell(second), ratio, worse or "no"])
    header = ["row", "before:", "after:", "time after/before:", "worse"]
    sys.stdout.write(formatting.markdown_table(header, lines) + "\n")
    if regressions:
        logging.error("Regressions: %s", "; ".join(regressions))
        sys.exit(1)


def _cell(result: Result) -> str:
    if result.error:
        return f"failed: {result.error}"
    memory = f", {result.peak_bytes / 1e9:.2f} GB" if result.peak_bytes else ""
    return f"{result.seconds:.3g} s{memory}"


if __name__ == "__main__":
    app.run(main)
