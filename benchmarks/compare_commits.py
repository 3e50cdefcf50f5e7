"""Compares two commits of this package for regressions: the same rows, in turn, in one run.

    python -m benchmarks.compare_commits main HEAD
    python -m benchmarks.compare_commits v0.1 HEAD --rows=inference-1,training-float32 --tolerance=0.02

Both commits are written out to temporary folders and run with the packages and the workers of this checkout. Ends
with exit code 1 if the second commit takes more time or memory than the first by more than the tolerance.
"""

import dataclasses
import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from absl import app, flags, logging

from benchmarks import main as program
from benchmarks import report
from keras_vit.benchmarking import race, results

DEFAULT = ("inference-16-float32", "inference-1-bfloat16", "training-float32", "import-jax", "build")

flags.DEFINE_float("tolerance", 0.05, "By what share the second may be worse.", lower_bound=0.0)


def write_out(commit, folder):
    """Writes the package as it was at a commit into a folder, and returns the commit's short name.

    Raises:
        ValueError: If there is no such commit.
    """
    done = subprocess.run(["git", "archive", commit, "keras_vit"], cwd=report.ROOT, capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"{commit!r} is no commit of {report.ROOT}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    name = ["git", "rev-parse", "--short=10", commit]
    return subprocess.run(name, cwd=report.ROOT, capture_output=True, text=True, check=True).stdout.strip()


def entrants_of(row, folders, python_of):
    """Returns the entrants of a row for each of the two, the first one's before the second one's.

    Args:
        row: The row; its peers do not take part.
        folders: The two folders by name.
        python_of: Function from the name of an environment to its Python.
    """
    row = dataclasses.replace(row, peers=())
    found = []
    for label, folder in folders.items():
        for entrant in row.entrants(python_of, root=folder):
            found.append(dataclasses.replace(entrant, name=f"{entrant.name} at {label}"))
    return found


def judge(first, second, ratio, tolerance):
    """Returns what is worse in the second of two results, in words; empty if nothing is.

    Args:
        first: `race.Result` of the first commit.
        second: That of the second.
        ratio: Median over the rounds of the second's seconds divided by the first's.
        tolerance: By what share it may be worse.
    """
    if second.error:
        return "" if first.error else f"fails: {second.error}"
    if first.error:
        return ""
    worse = []
    if ratio > 1 + tolerance:
        worse.append(f"{100 * (ratio - 1):.0f} % more time")
    if first.peak_bytes and second.peak_bytes > first.peak_bytes * (1 + tolerance):
        worse.append(f"{100 * (second.peak_bytes / first.peak_bytes - 1):.0f} % more memory")
    return ", ".join(worse)


def main(argv):
    options = flags.FLAGS
    if len(argv) != 3:
        raise app.UsageError("Two commits are needed: python -m benchmarks.compare_commits A B")
    lines, regressions = [], []
    python_of = program.Environments(options)
    with tempfile.TemporaryDirectory() as folder:
        folders = {}
        for side, commit in zip("ab", argv[1:], strict=True):
            path = Path(folder) / side
            folders[f"{side} ({write_out(commit, path)})"] = path
        for row in program.choose(options.rows or DEFAULT):
            logging.info("%s", row.name)
            both = entrants_of(row, folders, python_of)
            half = len(both) // 2
            for pair in zip(both[:half], both[half:], strict=True):
                first, second = race.race(pair, options.rounds or row.rounds)
                worse = judge(first, second, second.ratio, options.tolerance)
                regressions += [f"{pair[1].name.split(' at ')[0]} in {row.name}: {worse}"] if worse else []
                lines.append(_line(row, first, second, worse))
    sys.stdout.write(results.table(lines) + "\n")
    if regressions:
        logging.error("Worse than before: %s", "; ".join(regressions))
        sys.exit(1)


def _line(row, first, second, worse):
    def cell(result):
        if result.error:
            return f"failed: {result.error}"
        return (
            f"{result.seconds:.3g} s, {result.peak_bytes / 1e9:.2f} GB"
            if result.peak_bytes
            else (f"{result.seconds:.3g} s")
        )

    ratio = "" if second.ratio is None else f"{second.ratio:.3f}"
    system = first.system.split(" at ")[0]
    return {
        "row": f"{row.name}: {system}" if system != "keras_vit" else row.name,
        "before": cell(first),
        "after": cell(second),
        "time after/before": ratio,
        "worse": worse or "no",
    }


if __name__ == "__main__":
    app.run(main)
