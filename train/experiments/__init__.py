"""Experiments with several runs: sweeps over recipe fields, and comparisons."""

import importlib
from typing import TYPE_CHECKING, Any

from .comparison import compare
from .runs import metric_of_run, read_runs
from .table import Row, Table

if TYPE_CHECKING:
    from .sweeps import sweep

__all__ = ["Row", "Table", "compare", "metric_of_run", "read_runs", "sweep"]


def __getattr__(name: str) -> Any:
    if name == "sweep":  # imports Keras, which the records of runs do not need
        return importlib.import_module(f"{__name__}.sweeps").sweep
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
