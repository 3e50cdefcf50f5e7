"""Compare this package with other packages, and write the tables of docs/benchmarks.md.

    make benchmark
    make benchmark ROWS=inference-16-float32,training-bfloat16
    python -m benchmarks.main --list

Each package has a separate environment with pinned versions, which is installed from PyPI at first use.
Every system runs in a separate process, and the steps of the systems of a row are interleaved. In the same rounds,
another process measures the rates of matrix products and copies on this machine; each row shows its share of these
rates. A system that takes over five minutes to build, or over five minutes for its steps, is left out of its row.

A failure does not stop the other rows. Rows that were already measured with the same code on the same machine are
skipped, so a stopped run can be resumed; `--again` measures them again. Close all other programs first.
"""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags, logging

from benchmarks import environments, host, interleaved, records
from benchmarks.rows import ROWS, Row
from keras_vit.util import checks

flags.DEFINE_list("rows", [], "Prefixes of the names of the rows to measure; all rows if empty.")
flags.DEFINE_bool("list", False, "List the rows and exit.")
flags.DEFINE_bool("again", False, "Also measure rows that were already measured with this code.")
flags.DEFINE_integer("rounds", None, "Steps per system; by default, the number of the row.", lower_bound=1)
flags.DEFINE_list("peers", None, "Other packages to compare with; all by default.")
flags.DEFINE_multi_string("python", [], "NAME=PYTHON: interpreter of an existing environment.")
flags.DEFINE_string("environments", ".venv-benchmarks", "Directory of the environments.")
flags.DEFINE_bool("tables_only", False, "Write the tables from the records without measuring.")


def choose(names: Sequence[str]) -> list[Row]:
    """Return the rows whose names begin with one of `names`, or all rows if `names` is empty.

    Raises:
        ValueError: If a name matches no row.
    """
    for name in names:
        if not any(row.startswith(name) for row in ROWS):
            checks.choice("rows", name, list(ROWS))
    return [row for row in ROWS.values() if not names or row.name.startswith(tuple(names))]


class Environments:
    """Function from the name of an environment to its interpreter. The environment is created at first use.

    If the creation fails, `broken` contains the reason, and the function returns the interpreter of this program. Only
    the system of this environment then fails.
    """

    def __init__(self, options: flags.FlagValues):
        self.given = dict(entry.split("=", 1) for entry in options.python)
        self.directory = Path(options.environments).absolute()
        self.broken: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name in self.given:
            return self.given[name]
        try:
            return environments.ensure(name, self.directory)
        except (RuntimeError, OSError) as error:
            logging.error("%s", error)
            self.broken[name] = str(error)
            return sys.executable


def measure(row: Row, python_of: Environments, rounds: int) -> dict:
    """Measure a row and return its record."""
    row = row.with_files(python_of.directory)
    systems, machine = row.systems(python_of), row.machine(python_of)
    with host.OtherPrograms() as others:
        if row.together:
            results = interleaved.run([*systems, *([machine] if machine else [])], rounds)
            measured = results.pop() if machine else None
        else:
            results = [interleaved.run([system], rounds)[0] for system in systems]
            measured = interleaved.run([machine], rounds)[0] if machine else None
    for result in results:
        result.error = python_of.broken.get(result.system, result.error)
    if measured and measured.note:
        logging.info("Rates of the machine: %s", measured.note)
    return records.make(row, results, rounds, others.share, measured.rates if measured else None)


def main(argv: Sequence[str]) -> None:
    del argv
    options = flags.FLAGS
    rows = choose(options.rows)
    if options.list:
        sys.stdout.write("".join(f"{row.name:24} {row.title}\n" for row in rows))
        return
    python_of, done, failed = Environments(options), records.read(), []
    for number, row in enumerate([] if options.tables_only else rows, 1):
        if options.peers is not None:
            row = dataclasses.replace(row, peers=tuple(name for name in row.peers if name in options.peers))
        if not options.again and records.is_measured(row, done):
            logging.info("[%d/%d] %s: already measured with this code", number, len(rows), row.name)
            continue
        logging.info("[%d/%d] %s: %s", number, len(rows), row.name, row.title)
        started = time.monotonic()
        try:
            record = measure(row, python_of, options.rounds or row.rounds)
        except Exception:  # the other rows are still measured
            logging.exception("%s failed", row.name)
            failed.append(row.name)
            continue
        done.append(record)
        records.append(record)
        records.write_tables(done)
        failed += [f"{row.name} ({result['system']})" for result in record["results"] if result["error"]]
        logging.info("    in %.0f s", time.monotonic() - started)
        if (record["others"] or 0) > records.QUIET:
            logging.warning("    Other programs took %.0f %% of the processors", 100 * record["others"])
    records.write_tables(done)
    if failed:
        logging.error("Failed: %s", ", ".join(failed))
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
