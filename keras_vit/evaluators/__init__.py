"""Measuring models: `evaluate` runs any `predict` callable over batches of labelled images."""

from keras_vit.evaluators.classification import ClassificationMetrics as ClassificationMetrics
from keras_vit.evaluators.classification import evaluate as evaluate
