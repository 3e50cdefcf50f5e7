"""Experiments with several runs: sweeps over recipe fields, and comparisons."""

from keras_vit.experiments.comparison import compare
from keras_vit.experiments.runs import RunRecord, read_runs
from keras_vit.experiments.sweep import sweep
from keras_vit.experiments.table import Row, Table

__all__ = ["Row", "RunRecord", "Table", "compare", "read_runs", "sweep"]
