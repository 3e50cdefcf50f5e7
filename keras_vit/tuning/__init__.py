"""Complete training runs from a data set and a few choices."""

from keras_vit.tuning.fine_tune import fine_tune

__all__ = ["fine_tune"]
