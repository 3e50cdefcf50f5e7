"""Classifier made of a function, such as a model in training."""

from collections.abc import Callable, Sequence

import numpy as np

from keras_vit.inference.classifier import BaseClassifier
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.probabilities import to_probabilities


class FunctionClassifier(BaseClassifier):
    """Classifier made of a function of preprocessed images `[B, H, W, C]`.

    Args:
        card: Description of the classifier.
        function: Function to the input of the classification head, `[B, D]`, and logits `[B, classes]`.

    Example:
    >>> card = ModelCard(tuple("0123456789"), "decode|resize(32)|value_range(-1, 1)", "softmax", (32, 32, 3))
    >>> classifier = FunctionClassifier(card, keras_vit.models.representation(model).predict_on_batch)
    >>> classifier.predict(images).shape
    (4, 10)
    """

    kind = "function"
    scores_are = "logits"

    def __init__(self, card: ModelCard, function: Callable[[np.ndarray], Sequence[np.ndarray]]):
        super().__init__("", card)
        self._function = function

    def scores(self, images: np.ndarray) -> np.ndarray:
        return self._function(images)[1]

    def features(self, images: np.ndarray) -> np.ndarray:
        return self._function(images)[0]

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return the probabilities `[B, classes]` of preprocessed images `[B, H, W, C]`."""
        return to_probabilities(self.scores(images), self.card.output).numpy()
