"""Measures this package beside its peers and writes the tables of docs/benchmarks.md.

    make benchmark
    make benchmark ROWS=inference-16-float32,training-bfloat16
    python -m benchmarks.main --list

Each peer gets an environment of its own, made from the package index with pinned versions at first use. Every system
runs in a process of its own; the systems take their steps in turn, and what is compared is the median of the rounds'
ratios. A row that fails does not stop the others, and rows that were measured already with this very code on this
machine are left out, so that a stopped run goes on where it was; `--again` measures them anew.

Close everything else first: figures are worth what the quiet of the machine is worth.
"""

import sys
import time
from pathlib import Path

from absl import app, flags, logging

from benchmarks import environments, report
from benchmarks import rows as all_rows
from keras_vit import _checks
from keras_vit.benchmarking import machine, race

flags.DEFINE_list("rows", [], "Names of rows to measure, or beginnings of names; all if empty.")
flags.DEFINE_bool("list", False, "Only say which rows there are.")
flags.DEFINE_bool("again", False, "Measure rows that have been measured with this code, too.")
flags.DEFINE_integer("rounds", None, "Steps that each system takes; what the row says if not given.", lower_bound=1)
flags.DEFINE_list("peers", None, "Only these peers; all if not given.")
flags.DEFINE_multi_string("python", [], "NAME=PYTHON: an environment that is there already.")
flags.DEFINE_string("environments", ".venv-benchmarks", "Folder of the environments.")
flags.DEFINE_bool("tables_only", False, "Measure nothing; write the tables of what has been measured.")


def choose(wanted):
    """Returns the rows whose names begin with one of `wanted`, all if there is none.

    Raises:
        ValueError: If there is no such row.
    """
    chosen = {}
    for beginning in wanted or [""]:
        found = {name: row for name, row in all_rows.ROWS.items() if name.startswith(beginning)}
        if not found:
            _checks.choice("rows", beginning, list(all_rows.ROWS))
        chosen.update(found)
    return [row for name, row in all_rows.ROWS.items() if name in chosen]


class Environments:
    """Function from the name of an environment to its Python, which is made at first use.

    Where it cannot be made it is this program's own, in which the system fails in its own place; `broken` says why.
    """

    def __init__(self, options):
        self.given = dict(entry.split("=", 1) for entry in options.python)
        self.folder = Path(options.environments).absolute()
        self.broken = {}

    def __call__(self, name):
        if name in self.given:
            return self.given[name]
        try:
            return environments.ensure(name, self.folder)
        except (RuntimeError, OSError) as error:
            logging.error("%s", error)
            self.broken[name] = str(error)
            return sys.executable


def measure(row, python_of, rounds=None):
    """Runs a row and returns its list of `race.Result`."""
    entrants = row.entrants(python_of)
    if row.together:
        return race.race(entrants, rounds or row.rounds)
    return [result for entrant in entrants for result in race.race([entrant], rounds or row.rounds)]


def main(argv):
    del argv
    options = flags.FLAGS
    chosen = choose(options.rows)
    if options.list:
        sys.stdout.write("".join(f"{row.name:24} {row.title}\n" for row in chosen))
        return
    python_of = Environments(options)
    records = report.read()
    failed = []
    for number, row in enumerate([] if options.tables_only else chosen, 1):
        if not options.again and report.is_done(row, records):
            logging.info("[%d/%d] %s: measured already with this code", number, len(chosen), row.name)
            continue
        logging.info("[%d/%d] %s: %s", number, len(chosen), row.name, row.title)
        started = time.monotonic()
        try:
            with machine.Watch() as watch:
                outcome = measure(_with_peers(row, options.peers), python_of, options.rounds)
            entry = {**report.record(row, outcome), "others": watch.others and round(watch.others, 3)}
        except Exception:  # one row must not lose the others
            logging.exception("%s failed", row.name)
            failed.append(row.name)
            continue
        entry["rounds"] = options.rounds or row.rounds
        for result in entry["results"]:
            result["error"] = python_of.broken.get(result["system"], result["error"])
        records.append(entry)
        report.append(entry)
        report.write(records)
        for verdict in report.verdicts(row, entry):
            logging.info("    %s (%s): %s", verdict.measured, verdict.wanted, "met" if verdict.met else "NOT MET")
        failed += [f"{row.name} ({result['system']})" for result in entry["results"] if result["error"]]
        logging.info("    in %.0f s", time.monotonic() - started)
        if (entry["others"] or 0) > report.QUIET:
            logging.warning("    %.0f %% of the processors went to other programs meanwhile", 100 * entry["others"])
    report.write(records)
    if failed:
        logging.error("Failed: %s", ", ".join(failed))
        sys.exit(1)


def _with_peers(row, peers):
    if peers is None:
        return row
    return all_rows.dataclasses.replace(row, peers=tuple(name for name in row.peers if name in peers))


if __name__ == "__main__":
    app.run(main)
