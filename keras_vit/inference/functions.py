"""Classifiers made of functions, such as a model in training."""

from collections.abc import Callable

import numpy as np

from keras_vit.inference.classifier import BaseClassifier
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.probabilities import to_probabilities


class FunctionClassifier(BaseClassifier):
    """Classifier made of functions of preprocessed images `[B, H, W, C]`.

    Args:
        card: Description of the classifier.
        scores: Function to logits `[B, classes]`.
        features: Function to the input of the classification head, `[B, D]`.

    Example:
    >>> card = ModelCard(tuple("0123456789"), "decode|resize(32)|value_range(-1, 1)", "softmax", (32, 32, 3))
    >>> classifier = FunctionClassifier(card, model.predict_on_batch, model.predict_on_batch)
    >>> classifier.predict(images).shape
    (4, 10)
    """

    kind = "functions"
    scores_are = "logits"

    def __init__(
        self,
        card: ModelCard,
        scores: Callable[[np.ndarray], np.ndarray],
        features: Callable[[np.ndarray], np.ndarray],
    ):
        super().__init__("", card)
        self._scores, self._features = scores, features

    def scores(self, images: np.ndarray) -> np.ndarray:
        return self._scores(images)

    def features(self, images: np.ndarray) -> np.ndarray:
        return self._features(images)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return the probabilities `[B, classes]` of preprocessed images `[B, H, W, C]`."""
        return to_probabilities(self.scores(images), self.card.output).numpy()
