"""Panel: an experiment of the paper in miniature."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.paper.statements import Statement
from benchmarks.paper.study import Stage, Study
from keras_vit.recipe import Recipe

Rows = tuple[Sequence[str], Sequence[Sequence[object]]]  # header and rows of a table


@dataclasses.dataclass(frozen=True)
class Panel:
    """Experiment of the paper: a claim, runs, and statements that decide whether the claim reproduces.

    Attributes:
        name: Name for `--only`.
        title: Title, with the figure or table of the paper.
        claim: Claim of the paper.
        setup: Sentences about the miniature and how it differs from the paper.
        stages: Functions that return the runs of a stage for a study. A stage may depend on the results of earlier
            stages. If these results are missing, the function returns other runs of the same cost.
        table: Function that returns the table of results, with dashes for missing runs.
        draw: Function that returns the figures by name.
        statements: Function that returns the statements of the claim. It is called when all runs are finished.
        prepare: Function that writes the files that the runs need in addition to the data set.

    Example:
    >>> from benchmarks import paper
    >>> paper.PANELS["pooling"].title
    'Class token or mean pooling (appendix D.3, figure 9)'
    """

    name: str
    title: str
    claim: str
    setup: str
    stages: Sequence[Callable[[Study], Stage]]
    table: Callable[[Study], Rows]
    draw: Callable[[Study], dict[str, Any]]
    statements: Callable[[Study], list[Statement]]
    prepare: Callable[[Study], None] | None = None

    def runs(self, study: Study) -> dict[str, Recipe]:
        """Return the recipes of all runs by run directory. Stages can share runs."""
        return {path: recipe for stage in self.stages for path, recipe in study.runs(stage(study)).items()}
