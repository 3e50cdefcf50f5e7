"""Evaluators: accuracy of a classifier, errors of a regression, mIoU of a segmentation, and quality of features.

An evaluator measures a `Context`, which is a predictor (see `keras_vit.open_predictor`) with its data.
Programs and recipes create evaluators by name in a `Suite`. `evaluate` and `ClassificationMetrics` take arrays.
"""

from keras_vit.evaluators import (  # noqa: F401 - each module registers its evaluator
    class_subset,
    classification,
    fewshot,
    imagenet_real,
    knn,
    linear_probe,
    regression,
    segmentation,
    vtab,
)
from keras_vit.evaluators import results_table as results_table
from keras_vit.evaluators.classification import ClassificationMetrics, evaluate
from keras_vit.evaluators.dataset import EvaluationData, split_opener
from keras_vit.evaluators.dataset import collect as collect
from keras_vit.evaluators.evaluation import (
    EVALUATORS,
    Context,
    Evaluator,
    NotMeasurable,
    Result,
    SplitEvaluator,
    register,
)
from keras_vit.evaluators.features import FeatureEvaluator
from keras_vit.evaluators.suite import Scheduled as Scheduled
from keras_vit.evaluators.suite import Suite
from keras_vit.util.metrics import Metric

__all__ = [
    "EVALUATORS",
    "ClassificationMetrics",
    "Context",
    "EvaluationData",
    "Evaluator",
    "FeatureEvaluator",
    "Metric",
    "NotMeasurable",
    "Result",
    "SplitEvaluator",
    "Suite",
    "evaluate",
    "register",
    "split_opener",
]
