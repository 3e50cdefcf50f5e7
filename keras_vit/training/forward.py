"""The model of a run, as it is now, as a function of arrays for evaluators."""

from collections.abc import Callable

import numpy as np

from keras_vit.training.backend import Backend, State


def check_rows(images: np.ndarray, replicas: int) -> None:
    """Refuse images that do not divide among the replicas of this process."""
    if len(images) % replicas:
        raise ValueError(f"The images must divide among {replicas} replicas. Received: {len(images)} images.")


class Forward:
    """Features and logits of images, with the averaged weights where the run has them.

    Args:
        backend: Backend of the run.
        state: State of the run.
    """

    def __init__(self, backend: Backend, state: State):
        self.state = state
        self._forward: Callable = backend.compile_forward(state)

    def __call__(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return features `[B, D]` and logits `[B, classes]`.

        Args:
            images: float32 `[B, height, width, channels]` in the range of the model, the same in every process. B must
                be a multiple of the replicas.
        """
        return self._forward(images)

    def features(self, images: np.ndarray) -> np.ndarray:
        """Return the input of the head, `[B, D]`."""
        return self(images)[0]

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return the logits `[B, classes]`."""
        return self(images)[1]
