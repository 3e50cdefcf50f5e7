"""The training loop on `tf.distribute`, its checkpoints, and what a run leaves behind."""

from keras_vit.training.run_directory import Run, load_run

__all__ = ["Run", "load_run"]
