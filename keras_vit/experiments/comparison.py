"""Comparison of runs: recipes, data, versions, curves and results."""

import dataclasses
import os
import statistics
from collections.abc import Sequence
from typing import Any

from keras_vit import _io, _numbers, _passed_on
from keras_vit.experiments.runs import Run, read_runs
from keras_vit.experiments.table import metric_of, shorten

_LONGEST_TABLE = 6  # runs that stand side by side; of more, each has a row


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        runs: The runs.
    """

    runs: list[Run]

    @property
    def differences(self) -> dict[str, list[Any]]:
        """Values per run of the fields, data and versions that differ between the runs."""
        tables = [
            {**run.fields, **{f"version of {name}": text for name, text in run.versions.items()}} for run in self.runs
        ]
        names = dict.fromkeys(name for table in tables for name in table)
        values = {name: [table.get(name) for table in tables] for name in names}
        return {name: found for name, found in values.items() if any(value != found[0] for value in found)}

    @property
    def metrics(self) -> list[str]:
        """Metrics of the evaluations, in order of appearance."""
        return list(dict.fromkeys(name for run in self.runs for name in run.final()))

    def results(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows of the table of results."""
        header = ["run", "steps:", *(f"{name}:" for name in self.metrics)]
        header += ["best eval_accuracy:", "training loss:", "images per second:"]
        return header, [self._result(run) for run in self.runs]

    def difference_table(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows of the table of differences: a column per run, or a row if there are many."""
        # Without the folders of paths: the tables may be passed on to others.
        found = {
            name: [shorten(_passed_on.without_folders(value)) for value in values]
            for name, values in self.differences.items()
        }
        if len(self.runs) <= _LONGEST_TABLE:
            return ["field", *(run.name for run in self.runs)], [[name, *cells] for name, cells in found.items()]
        rows = [[run.name, *(cells[index] for cells in found.values())] for index, run in enumerate(self.runs)]
        return ["run", *found], rows

    def markdown(self) -> str:
        """Return both tables as Markdown."""
        same = "The runs have the same recipe, data and versions."
        differences = _io.markdown_table(*self.difference_table()) if self.differences else same
        return f"## Results\n\n{_io.markdown_table(*self.results())}\n\n## Differences\n\n{differences}\n"

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain dictionaries, ready for JSON."""
        return {
            "runs": [
                {"name": run.name, "step": run.step, "finished": run.finished, "metrics": run.final()}
                for run in self.runs
            ],
            "differences": self.differences,
        }

    def _result(self, run: Run) -> list[str]:
        final, accuracies = run.final(), run.curve("eval_accuracy")
        losses, speeds = run.curve("loss"), run.curve("images_per_second")
        best = max(accuracies, key=lambda step: accuracies[step], default=None)
        return [
            run.name,
            f"{run.step:,}" if run.finished else f"{run.step:,} of {run.fields.get('total_steps'):,}",
            *(metric_of(name).text(final.get(name)) for name in self.metrics),
            _numbers.NONE if best is None else f"{metric_of('accuracy').text(accuracies[best])} (step {best:,})",
            metric_of("loss").text(losses[max(losses)] if losses else None),
            f"{statistics.median(speeds.values()):,.0f}" if speeds else _numbers.NONE,
        ]


def compare(paths: Sequence[str]) -> Comparison:
    """Compare runs.

    Args:
        paths: Run directories, and directories of sweeps, which stand for all of their runs. Other paths and damaged
            runs are skipped with a warning.

    Raises:
        FileNotFoundError: If no path is a run or a sweep.
        ValueError: If only one run is given, or all are damaged.

    Example:
    >>> print(compare(["runs/adamw", "runs/sgd"]).markdown())  # doctest: +SKIP
    """
    runs = read_runs(paths)
    if len(runs) < 2 and len(set(map(os.path.normpath, paths))) < 2:
        raise ValueError(f"Expected at least two runs to compare. Received: {', '.join(paths) or 'none'}.")
    return Comparison(runs)
