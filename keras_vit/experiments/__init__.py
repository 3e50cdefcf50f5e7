"""Several runs at a time: sweeps over recipe fields, and comparison of runs."""

from keras_vit.experiments.comparison import Comparison, compare
from keras_vit.experiments.search import Point, expand, parse_grid
from keras_vit.experiments.sweep import pending, sweep
from keras_vit.experiments.table import Row, Table

__all__ = ["Comparison", "Point", "Row", "Table", "compare", "expand", "parse_grid", "pending", "sweep"]
