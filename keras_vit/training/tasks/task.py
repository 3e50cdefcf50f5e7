"""The interface between a task and the training step."""

from collections.abc import Callable
from typing import Any, Protocol

import keras
import numpy as np


class Task(Protocol):
    """Learning task, as a pure function for every backend.

    The step hands a task the values of a batch, a tuple of arrays `[b, ...]` whose rows are those of the examples.

    Attributes:
        score: Name of the metric beside the loss. The best checkpoint has most of it.
    """

    score: str

    def __call__(self, model: keras.Model, values: tuple, training: bool) -> tuple[Any, Any, Any]:
        """Return losses `[b]`, scores `[b]` and predictions `[b, ...]`, float32."""


class HiddenPatchesTask(Task, Protocol):
    """Task that hides patches and predicts them. It reads no labels."""

    def draw(self, seed: int, step: Any, batch_size: int) -> dict[str, Any]:
        """Return the entries of a global batch that say which patches are hidden."""

    def values(self, images: Any, batch: dict) -> tuple:
        """Return the values of a batch.

        Images `[b, h, w, c]` are in the range of the model. The batch has the entries of `draw`.
        """

    def show(
        self, batch: dict[str, np.ndarray], predictions: np.ndarray, preprocess: Callable
    ) -> dict[str, np.ndarray]:
        """Return images of an evaluation to look at: input, what the model saw of it, and its reconstruction.

        They are uint8 `[n, h, w, c]` by name, in this order. `preprocess` maps images of the pipeline to the range of
        the model.
        """
