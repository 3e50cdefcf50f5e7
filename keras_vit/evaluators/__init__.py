"""Measuring networks, given as functions of arrays: scores against labels, and what their features are good for."""

from keras_vit.evaluators import classes, classification, fewshot, knn, linear_probe, real, report, subsets, vtab
from keras_vit.evaluators.classification import ClassificationMetrics, evaluate
from keras_vit.evaluators.features import collect
from keras_vit.evaluators.result import Findings, Result
from keras_vit.evaluators.scheduled import Scheduled
from keras_vit.evaluators.splits import opener
from keras_vit.evaluators.subject import NotMeasurable, Split, Subject
from keras_vit.evaluators.suite import EVALUATORS, Suite

__all__ = [
    "EVALUATORS",
    "ClassificationMetrics",
    "Findings",
    "NotMeasurable",
    "Result",
    "Scheduled",
    "Split",
    "Subject",
    "Suite",
    "classes",
    "classification",
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
