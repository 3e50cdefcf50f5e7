"""Errors of predicted values, in the unit of the data."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from keras_vit.evaluators.dataset import EvaluationData, collect
from keras_vit.evaluators.evaluation import COUNTS, Context, Result, SplitEvaluator, register
from keras_vit.util.metrics import Metric, regression_errors


@register
@dataclasses.dataclass(kw_only=True)
class Regression(SplitEvaluator):
    """Mean absolute error, root mean squared error and R2, each averaged over the values.

    The standardized mean absolute error is divided by the standard deviation of each value in the training split.
    """

    name: ClassVar = "regression"
    outputs: ClassVar = ("values",)
    label_kinds: ClassVar = ("values",)
    metrics: ClassVar = {
        **COUNTS,
        "standardized_mae": Metric("standardized_mae", larger_is_better=False),
        "mae": Metric("mae", larger_is_better=False),
        "rmse": Metric("rmse", larger_is_better=False),
        "r2": Metric("r2"),
    }

    def check(self, context: Context) -> None:
        _columns(context, self.open(context))

    def measure(self, context: Context) -> Result:
        opened = self.open(context)
        columns = _columns(context, opened)
        predicted, true = collect(context.predictor.predict, opened.batches)
        result = to_result(true[:, columns], predicted, [opened.value_names[column] for column in columns])
        if deviation := context.predictor.card.values.get("deviation"):
            standardized = float(np.mean(result.details["per_value"]["mae"] / np.asarray(deviation)))
            return dataclasses.replace(result, metrics={"standardized_mae": standardized, **result.metrics})
        return result


def to_result(true: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> Result:
    """Return the errors of values `[N, k]` as a `Result`, whose metrics are means over the values."""
    per_value = regression_errors(true, predicted)
    metrics = {name: float(values.mean()) for name, values in per_value.items()}
    non_finite = int((~np.isfinite(predicted)).any(axis=1).sum())
    counts = {"examples": len(true), **({"non_finite": non_finite} if non_finite else {})}
    arrays = {"non_finite": non_finite, "per_value": per_value, "true": true, "predicted": predicted}
    return Result({**metrics, **counts}, details={"value_names": tuple(names), **arrays})


def _columns(context: Context, opened: EvaluationData) -> list[int]:
    """Return the column of each predicted value in the labels. Raise an error if the names of the values differ."""
    known, names = tuple(context.predictor.card.values.get("names", opened.value_names)), opened.value_names
    if sorted(known) != sorted(names):
        raise ValueError(
            f"The data must have the values that the model predicts: {', '.join(known)}. Received: {', '.join(names)}. "
            "Rename the values of the data, or choose their columns."
        )
    return [names.index(name) for name in known]
