"""Weights of a checkpoint that the user chose, written by one process or by several hosts."""

import os
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from keras_vit.runs.checkpoints import BEST, path_of, problem_with, saved_steps
from keras_vit.runs.errors import CheckpointMismatch


def choose(directory: str, checkpoint: str) -> "ChosenCheckpoint":
    """Return the best checkpoint (`"best"`), the newest checkpoint (`"last"`) or the checkpoint of a step.

    Raises a ValueError if the checkpoint is damaged or does not exist.
    """
    best = os.path.join(directory, BEST)
    folders = {"best": [best], "last": [directory]}.get(checkpoint, [best, directory])
    steps = [(folder, step) for folder in folders for step in reversed(saved_steps(folder))]
    wanted = [ChosenCheckpoint(folder, step) for folder, step in steps if checkpoint in ("best", "last", str(step))]
    for chosen in wanted:
        if problem_with(chosen.path) is None:
            return chosen
    if wanted:
        raise ValueError(f"{wanted[0].path} is not usable: {problem_with(wanted[0].path)}")
    raise ValueError(
        f"checkpoint must be 'last', 'best' or the step of a checkpoint in {directory}: {listed(directory)}. Received: "
        f"checkpoint={checkpoint!r}. Without it, model.keras is opened."
    )


def listed(directory: str) -> str:
    """Return the checkpoints of a directory in words, such as "best (200), 400, 500"."""
    best, steps = saved_steps(os.path.join(directory, BEST)), saved_steps(directory)
    return ", ".join([*(f"best ({step})" for step in best[-1:]), *map(str, steps)]) or "none"


class ChosenCheckpoint:
    """Checkpoint of a step.

    Attributes:
        path: Prefix of the files of one process, or directory of several hosts.
        step: The step.
    """

    def __init__(self, folder: str, step: int):
        self.step, self.path = step, path_of(folder, step)

    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """Read the weights for evaluation by path, or their moving averages if the checkpoint contains averages."""
        stored, read = self._opened()
        names = {path: f"{'average' if f'average/{path}' in stored else 'model'}/{path}" for path in shapes}
        for path, shape in shapes.items():
            received = stored.get(names[path], "no such weight")
            if received != list(shape):
                raise CheckpointMismatch(
                    f"Checkpoint {self.path} does not fit the recipe of its run: {path!r} must have the shape "
                    f"{list(shape)}. Received: {received}."
                )
        values = read(names.values())
        return {path: values[name] for path, name in names.items()}

    def _opened(self) -> tuple[dict[str, list[int]], Callable[[Iterable[str]], dict[str, np.ndarray]]]:
        """Return the shapes of the arrays by name, and a function that reads named arrays."""
        if not os.path.isdir(self.path):
            import tensorflow as tf  # not needed on JAX with several hosts, and absent on some GPU machines

            reader = tf.train.load_checkpoint(self.path)
            return reader.get_variable_to_shape_map(), lambda names: {name: reader.get_tensor(name) for name in names}
        from keras_vit.runs.orbax_files import described, read  # imports JAX

        found = described(self.path)
        shapes = {name: list(shape) for name, (shape, _) in found.items()}
        return shapes, lambda names: read(self.path, {name: np.empty(*found[name]) for name in names})
