"""Experiments with several runs: sweeps over recipe fields, and comparisons."""

import importlib
from typing import TYPE_CHECKING, Any

from keras_vit.experiments.comparison import compare
from keras_vit.experiments.runs import RunRecord, read_runs
from keras_vit.experiments.table import Row, Table

if TYPE_CHECKING:
    from keras_vit.experiments.sweeps import sweep

__all__ = ["Row", "RunRecord", "Table", "compare", "read_runs", "sweep"]


def __getattr__(name: str) -> Any:
    if name == "sweep":  # imports Keras, which the records of runs do not need
        return importlib.import_module("keras_vit.experiments.sweeps").sweep
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
