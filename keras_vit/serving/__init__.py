"""Exporting models, verifying what was exported, and serving it."""

from keras_vit.serving.client import Client as Client
from keras_vit.serving.client import Prediction as Prediction
