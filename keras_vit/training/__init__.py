"""Training: the loop on TensorFlow and JAX, and complete runs from a data set and a few choices."""

from keras_vit.training.fine_tune import fine_tune

__all__ = ["fine_tune"]
