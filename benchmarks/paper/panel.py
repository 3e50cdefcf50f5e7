"""Panels: an experiment of the paper in miniature."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.paper.statements import Statement
from benchmarks.paper.study import Stage, Study
from keras_vit.recipe import Recipe

Rows = tuple[Sequence[str], Sequence[Sequence[object]]]  # header and rows of a table


@dataclasses.dataclass(frozen=True)
class Panel:
    """An experiment of the paper: a claim, runs, and statements that decide whether it reproduces.

    Attributes:
        name: Name for `--only`.
        title: Title, with the figure or table of the paper.
        claim: Claim of the paper.
        setup: Sentences on the miniature and how it differs from the paper.
        stages: Functions of the study to its runs. A stage may depend on the results of those before it; where these
            are missing, its runs are others of the same cost.
        table: Returns the table of the results, with dashes where a run is missing.
        draw: Returns the figures by name.
        statements: Returns the statements of the claim. Called when all runs are finished.
        prepare: Writes the files that the runs need beside the data set.

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
        """Return the recipes of all runs by run directory. Stages may share runs."""
        return {path: recipe for stage in self.stages for path, recipe in study.runs(stage(study)).items()}
