"""Sources of labeled images, preprocessing strings, and batches for training and evaluation."""

from keras_vit.data import mix, preprocess
from keras_vit.data.errors import BadImageLog, UnreadableImageError, explain, image_errors
from keras_vit.data.labels import values_of
from keras_vit.data.parse import IGNORED
from keras_vit.data.pipeline import eval_batches, train_batches
from keras_vit.data.readers import open_source, split_sizes
from keras_vit.data.sources import IndexedSource, Source

__all__ = [
    "BadImageLog",
    "IGNORED",
    "IndexedSource",
    "Source",
    "UnreadableImageError",
    "eval_batches",
    "explain",
    "image_errors",
    "mix",
    "open_source",
    "preprocess",
    "split_sizes",
    "train_batches",
    "values_of",
]
