"""Measuring networks, given as functions of arrays: scores against labels, and what their features are good for."""

from keras_vit.evaluators import fewshot, knn, linear_probe, real, report, subsets, vtab
from keras_vit.evaluators.classification import ClassificationMetrics, evaluate
from keras_vit.evaluators.features import collect
from keras_vit.evaluators.scheduled import Scheduled
from keras_vit.evaluators.splits import opener
from keras_vit.evaluators.subject import Split, Subject
from keras_vit.evaluators.suite import EVALUATORS, Result, Suite

__all__ = [
    "EVALUATORS",
    "ClassificationMetrics",
    "Result",
    "Scheduled",
    "Split",
    "Subject",
    "Suite",
    "collect",
    "evaluate",
    "fewshot",
    "knn",
    "linear_probe",
    "opener",
    "real",
    "report",
    "subsets",
    "vtab",
]
