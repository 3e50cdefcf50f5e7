"""The training loop on TensorFlow and JAX, its checkpoints, and the files of a run."""

from keras_vit.training.run_directory import Run, load_run

__all__ = ["Run", "load_run"]
