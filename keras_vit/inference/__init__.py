"""Classifiers of every format behind one interface: images in, probabilities out."""

import importlib
from typing import TYPE_CHECKING, Any

from keras_vit.inference.classifier import Classifier, FunctionClassifier
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.opening import open_classifier

if TYPE_CHECKING:
    from keras_vit.inference.keras_model import KerasClassifier

__all__ = ["Classifier", "FunctionClassifier", "KerasClassifier", "ModelCard", "open_classifier"]


def __getattr__(name: str) -> Any:
    if name == "KerasClassifier":  # imports Keras' backend, which the files of other runtimes do without
        return importlib.import_module("keras_vit.inference.keras_model").KerasClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
