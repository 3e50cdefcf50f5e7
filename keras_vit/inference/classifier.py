"""Interface of everything that predicts."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from keras_vit.inference import sample_images
from keras_vit.inference.model_card import ModelCard


class Classifier(Protocol):
    """Classifier of any format, from preprocessed images to probabilities.

    Attributes:
        kind: `"keras"`, `"saved_model"`, `"tflite"`, `"onnx"` or `"openvino"`.
        path: File or directory of the classifier.
        card: Description of the classifier.
        scores_are: Whether `scores` returns `"logits"` or `"probabilities"`.
        features_unavailable: Why `features` raises an error, and what to do; None if features are available.
    """

    kind: str
    path: str
    card: ModelCard
    scores_are: str
    features_unavailable: str | None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of the probabilities."""
        ...

    def preprocess(self, contents: Sequence[bytes]) -> np.ndarray:
        """Prepare encoded images: `[B, H, W, C]`."""
        ...

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return the probabilities `[B, classes]` of preprocessed images `[B, H, W, C]`."""
        ...

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Return logits `[B, classes]` if the classifier has them, else probabilities; see `scores_are`."""
        ...

    def features(self, images: np.ndarray) -> np.ndarray:
        """Return the input of the classification head, float32 `[B, D]`.

        Raises:
            ValueError: If the classifier does not compute features; see `features_unavailable`.
        """
        ...

    def close(self) -> None:
        """Free what the classifier holds."""
        ...


class BaseClassifier:
    """Common part of the classifiers.

    Args:
        path: File or directory of the classifier.
        card: Its description.
    """

    kind = ""
    scores_are = "probabilities"
    features_unavailable: str | None = None

    def __init__(self, path: str, card: ModelCard):
        self.path = path
        self.card = card

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of the probabilities."""
        return self.card.class_names

    def preprocess(self, contents: Sequence[bytes]) -> np.ndarray:
        """Prepare encoded images: `[B, H, W, C]`."""
        return sample_images.prepare(contents, self.card.preprocess_function())

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return the probabilities `[B, classes]` of preprocessed images `[B, H, W, C]`."""
        raise NotImplementedError

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Return logits `[B, classes]` if the classifier has them, else probabilities; see `scores_are`."""
        return self.predict(images)

    def features(self, images: np.ndarray) -> np.ndarray:
        """Return the input of the classification head, float32 `[B, D]`.

        Raises:
            ValueError: If the classifier does not compute features; see `features_unavailable`.
        """
        raise ValueError(f"Features of {self.path!r} are not available: {self.features_unavailable}.")

    def close(self) -> None:
        """Free what the classifier holds."""


def in_batches(function: Callable[[np.ndarray], np.ndarray], images: np.ndarray, batch_size: int) -> np.ndarray:
    """Apply a function to batches of one size; the last batch is padded with zeros.

    Args:
        function: From images `[batch_size, H, W, C]` to `[batch_size, D]`.
        images: `[N, H, W, C]`.
        batch_size: Number of images per batch.

    Returns:
        `[N, D]`.
    """
    answers = []
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        missing = batch_size - len(batch)
        padded = np.pad(batch, [(0, missing), (0, 0), (0, 0), (0, 0)]) if missing else batch
        answers.append(function(padded)[: len(batch)])
    return np.concatenate(answers)
