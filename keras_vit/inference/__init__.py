"""Classifiers of every format behind one interface: images in, probabilities out."""

from keras_vit.inference.classifier import Classifier
from keras_vit.inference.keras_model import FunctionClassifier, KerasClassifier
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.opening import open_classifier

__all__ = ["Classifier", "FunctionClassifier", "KerasClassifier", "ModelCard", "open_classifier"]
