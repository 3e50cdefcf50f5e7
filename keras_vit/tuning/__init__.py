"""Training as a whole: from a data set and a few choices to a finished run."""

from keras_vit.tuning.fine_tune import fine_tune

__all__ = ["fine_tune"]
