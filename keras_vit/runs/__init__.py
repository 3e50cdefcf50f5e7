"""Run directories: records, checkpoints and models of runs, to read and to compare."""

from keras_vit.runs.trained_run import Run, load_run

__all__ = ["Run", "load_run"]
