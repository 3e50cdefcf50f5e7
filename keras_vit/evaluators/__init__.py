"""Evaluators: accuracy of a predictor, and of classifiers on its features.

An evaluator measures a `Context`: a predictor, see `keras_vit.inference.open_predictor`, and its data. Programs and
recipes create evaluators by name in a `Suite`. The functions behind them take arrays.
"""

from keras_vit.evaluators import class_subset, classification, fewshot, knn, linear_probe, real, results_table, vtab
from keras_vit.evaluators.classification import ClassificationMetrics, evaluate
from keras_vit.evaluators.dataset import Split, collect, opener
from keras_vit.evaluators.evaluation import Context, Evaluator, NotMeasurable, Result
from keras_vit.evaluators.suite import EVALUATORS, Scheduled, Suite

__all__ = [
    "EVALUATORS",
    "ClassificationMetrics",
    "Context",
    "Evaluator",
    "NotMeasurable",
    "Result",
    "Scheduled",
    "Split",
    "Suite",
    "class_subset",
    "classification",
    "collect",
    "evaluate",
    "fewshot",
    "knn",
    "linear_probe",
    "opener",
    "real",
    "results_table",
    "vtab",
]
