"""Data: sources of labelled images, preprocessing strings, and batches for training and evaluation."""

from keras_vit.data import mix, preprocess
from keras_vit.data.bad_images import Log, explain
from keras_vit.data.pipeline import eval_batches, train_batches
from keras_vit.data.readers import open_source, split_sizes
from keras_vit.data.sources import Source

__all__ = [
    "Log",
    "Source",
    "eval_batches",
    "explain",
    "mix",
    "open_source",
    "preprocess",
    "split_sizes",
    "train_batches",
]
