"""One interface to predictors of every format: images in, probabilities out."""

import importlib
from typing import TYPE_CHECKING, Any

from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.opening import open_predictor
from keras_vit.inference.predictor import FunctionPredictor, Prediction, Predictor

if TYPE_CHECKING:
    from keras_vit.inference.keras_model import KerasPredictor

__all__ = ["Predictor", "FunctionPredictor", "KerasPredictor", "ModelCard", "Prediction", "open_predictor"]


def __getattr__(name: str) -> Any:
    if name == "KerasPredictor":  # imports Keras' backend, which other runtimes do not need
        return importlib.import_module("keras_vit.inference.keras_model").KerasPredictor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
