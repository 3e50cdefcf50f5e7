"""Parts of the training state that do not depend on the backend: progress, and the names in a checkpoint."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.training.seeds import seed_states


@dataclasses.dataclass
class Progress:
    """Numbers of a run that live on the host.

    The data and all randomness are functions of the seed and the step, so the step is also the position in the data
    and the state of every random generator.

    Attributes:
        step: Number of updates made.
        best: Best score of the validation, such as its accuracy.
        window: Sums of loss and score since the last logged line, and their count.
    """

    step: int = 0
    best: float = -np.inf
    window: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(3, np.float32))

    def values(self) -> dict[str, np.ndarray]:
        """Return step, best score and window as arrays, for a checkpoint."""
        return {
            "step": np.asarray(self.step, np.int64),
            "best": np.asarray(self.best, np.float32),
            "window": self.window,
        }

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Set step, best score and window from the arrays of a checkpoint."""
        self.step, self.best = int(values["step"]), float(values["best"])
        self.window = np.array(values["window"], np.float32)


def weights(model: keras.Model) -> list[keras.Variable]:
    """Return all variables of a model but the states of its random generators, which the step decides."""
    generators = {id(variable) for variable in seed_states(model)}
    return [variable for variable in model.variables if id(variable) not in generators]


def moving_statistics(model: keras.Model) -> list[keras.Variable]:
    """Return the variables that a forward pass in training mode changes: the moving statistics of batch norms."""
    norms = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    return [variable for norm in norms if norm.trainable for variable in (norm.moving_mean, norm.moving_variance)]


def checkpoint_names(
    trained: Sequence[str], fixed: Sequence[str], slots: Sequence[Sequence[str]], averages: bool
) -> dict[str, Any]:
    """Return the names of the arrays of a state in a checkpoint, in the structure of the arrays themselves.

    `"slots"` is a list per weight.
    """
    names = {
        "weights": [f"model/{path}" for path in trained],
        "fixed": [f"model/{path}" for path in fixed],
        "slots": [
            [f"optimizer/{slot}/{path}" for slot in of_path] for path, of_path in zip(trained, slots, strict=True)
        ],
        "averages": [f"average/{path}" for path in trained] if averages else [],
    }
    if len({*trained, *fixed}) < len(trained) + len(fixed):
        raise ValueError("Two variables of the model have the same path, so a checkpoint cannot tell them apart.")
    return names


def flat(tree: dict[str, Any]) -> Iterable[Any]:
    """Yield the leaves of the structure of `checkpoint_names`, in order."""
    yield from tree["weights"]
    yield from tree["fixed"]
    for of_weight in tree["slots"]:
        yield from of_weight
    yield from tree["averages"]
