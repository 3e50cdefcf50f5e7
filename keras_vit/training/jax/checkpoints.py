"""Checkpoints of a run on JAX: the same files as under TensorFlow."""

import tensorflow as tf

from keras_vit.training import checkpoints
from keras_vit.training.jax.state import Placed


class CheckpointStore(checkpoints.CheckpointStore):
    """Writes the arrays of all devices as whole variables, so that another number of devices can go on from them.

    Args:
        variables: as `TrainState.variables` gives them.
        directory: where; made if it does not exist.
        keep: how many of the newest are kept.
        writes: whether this process writes.
    """

    def __init__(self, variables: dict, directory: str, keep: int = 2, writes: bool = True):
        self.placed = {name: variable for name, variable in variables.items() if isinstance(variable, Placed)}
        self.devices = next(iter(self.placed.values())).devices
        with tf.device("CPU:0"):
            self.copies = {
                name: tf.Variable(tf.zeros(placed.description.shape, tf.as_dtype(placed.description.dtype)))
                for name, placed in self.placed.items()
            }
        super().__init__({**variables, **self.copies}, directory, keep, writes)

    def save(self, best: bool = False) -> None:
        """Writes a checkpoint; see the parent. Every process must ask, because each has but a part of the arrays."""
        for name, placed in self.placed.items():
            value = placed.numpy()
            if self.writes:
                self.copies[name].assign(value)
        try:
            super().save(best)
        finally:
            self.devices.wait()  # no process goes on, or ends, while one writes

    def _read(self, prefix: str) -> None:
        super()._read(prefix)
        for name, placed in self.placed.items():
            placed.assign(self.copies[name].numpy())
