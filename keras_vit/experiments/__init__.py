"""Several runs at a time: sweeps over recipe fields, and comparison of runs."""

from keras_vit.experiments.grid import Point, expand, parse_grid
from keras_vit.experiments.sweep import pending, sweep
from keras_vit.experiments.table import Row, Table

__all__ = ["Point", "Row", "Table", "expand", "parse_grid", "pending", "sweep"]
