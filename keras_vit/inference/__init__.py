"""One interface to predictors of every format: images in, probabilities out."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_vit.inference.keras_model import KerasPredictor
    from keras_vit.inference.model_card import ModelCard
    from keras_vit.inference.opening import open_predictor
    from keras_vit.inference.predictor import FunctionPredictor, Prediction, Predictor
    from keras_vit.inference.ray_engine import RayPredictor

__all__ = ["Predictor", "FunctionPredictor", "KerasPredictor", "ModelCard", "Prediction", "RayPredictor"]
__all__ += ["open_predictor"]

# Imported on first access: most runtimes do not need Keras' backend, and programs read the table of formats before they
# import anything else.
_MODULES = {
    "KerasPredictor": "keras_model",
    "ModelCard": "model_card",
    "open_predictor": "opening",
    "RayPredictor": "ray_engine",
    **dict.fromkeys(("FunctionPredictor", "Prediction", "Predictor"), "predictor"),
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"keras_vit.inference.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
