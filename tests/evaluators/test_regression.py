"""Errors of values, against scikit-learn and against values worked out by hand."""

import numpy as np
import pytest

from keras_vit import evaluators
from keras_vit.util import metrics
from tests.evaluators.synthetic import Data, context, of_values

RNG = np.random.default_rng(0)
TRUE = (RNG.normal(size=(50, 3)) * [1.0, 20.0, 1e-3] + [0.0, 1_000.0, 5.0]).astype("float32")
PREDICTED = (TRUE + RNG.normal(size=(50, 3)) * [0.3, 30.0, 1e-4]).astype("float32")
NAMES = ("age", "weight", "height")


def measured(*arguments, **changes):
    """The result of the evaluator, after its check."""
    suite, where = evaluators.Suite(["regression"]), of_values(*arguments, **changes)
    suite.check(where)
    return suite.run(where)[0]


def test_metrics_match_hand_computation():
    result = measured([[1.0], [2.0], [6.0]], [[1.0], [4.0], [4.0]])
    assert result.metrics["mae"] == pytest.approx(4 / 3)
    assert result.metrics["rmse"] == pytest.approx(np.sqrt(8 / 3))
    assert result.metrics["r2"] == pytest.approx(1 - 8 / 6)  # worse than the mean, 3
    assert result.metrics["examples"] == 3 and "non_finite" not in result.metrics
    assert result.text("mae") == "1.333" and result.text("examples") == "3"  # in the unit of the data, not in percent


@pytest.mark.parametrize("k", [1, 3])
def test_metrics_match_scikit_learn(k):
    sklearn = pytest.importorskip("sklearn.metrics")
    true, predicted = TRUE[:, :k], PREDICTED[:, :k]
    result = measured(predicted, true, NAMES[:k])
    for name, function in {
        "mae": sklearn.mean_absolute_error,
        "rmse": sklearn.root_mean_squared_error,
        "r2": sklearn.r2_score,
    }.items():
        arrays = true.astype("float64"), predicted.astype("float64")
        assert result.metrics[name] == pytest.approx(function(*arrays), rel=1e-9, abs=0)
        expected = function(*arrays, multioutput="raw_values")
        np.testing.assert_allclose(result.details["per_value"][name], expected, rtol=1e-9)


def test_r2_of_constant_values_matches_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    true = np.full((4, 2), 3.0)
    predicted = true + [[0.0, 1.0]]
    expected = sklearn.r2_score(true, predicted, multioutput="raw_values")
    np.testing.assert_array_equal(metrics.regression_errors(true, predicted)["r2"], expected)
    assert np.isnan(metrics.regression_errors(true[:1], predicted[:1])["r2"]).all()  # of one image


def test_error_in_standard_deviations_averages_values_of_different_units():
    """A model that errs by one year is better than a model that errs by 12 years and a bit less in the income."""
    true, known = np.array([[30.0, 40_000.0]]), {"names": ["age", "income"], "deviation": [12.0, 20_000.0]}
    better, worse = (
        measured(true + [error], true, tuple(known["names"]), values=known).metrics
        for error in ([1.0, 4_000.0], [12.0, 3_900.0])
    )
    assert better["mae"] > worse["mae"] and better["standardized_mae"] < worse["standardized_mae"]
    assert better["standardized_mae"] == pytest.approx((1 / 12 + 0.2) / 2)


def test_batches_of_any_size_give_the_same_result():
    first, *others = (measured(PREDICTED, TRUE, NAMES, size=size) for size in (1, 7, 50))
    for other in others:
        assert other.metrics == first.metrics
        np.testing.assert_array_equal(other.details["true"], TRUE)
        np.testing.assert_array_equal(other.details["predicted"], PREDICTED)


def test_predictions_that_are_not_finite_are_counted():
    predicted = PREDICTED.copy()
    predicted[[3, 5], [0, 0]] = np.nan, np.inf
    result = measured(predicted, TRUE, NAMES)
    assert result.metrics["examples"] == 50 and result.metrics["non_finite"] == 2
    assert np.isnan(result.metrics["mae"])
    finite = metrics.regression_errors(TRUE[:, 1:], PREDICTED[:, 1:])
    np.testing.assert_array_equal(result.details["per_value"]["mae"][1:], finite["mae"])
    assert '"mae": null' in evaluators.results_table.to_json([result])


def test_values_are_matched_by_name():
    order = [2, 0, 1]
    shuffled = measured(PREDICTED, TRUE[:, order], tuple(NAMES[column] for column in order), known=NAMES)
    expected = measured(PREDICTED, TRUE, NAMES)
    assert shuffled.metrics == expected.metrics and shuffled.details["value_names"] == NAMES
    with pytest.raises(ValueError, match="values that the model predicts: age. Received: weight"):
        measured(PREDICTED[:, :1], TRUE[:, :1], ("weight",), known=("age",))


@pytest.mark.parametrize(
    ("evaluator", "where", "message"),
    [
        (
            "regression",
            context(Data()),
            "'values' and a model .* 'values'. Received: 'made-up' .* 'class', .* 'softmax'",
        ),
        ("regression", context(Data(), output="values"), "Received: 'made-up' with .* 'class', .* 'values'"),
        (
            "regression",
            of_values(TRUE, TRUE, NAMES, output="softmax"),
            "Received: .* 'values', and the output 'softmax'",
        ),
        ("classification", of_values(TRUE, TRUE, NAMES), "'class' or 'classes' .* 'values', and the output 'values'"),
        ("classification", of_values(TRUE, TRUE, NAMES, output="softmax"), "Received: .* 'values', .* 'softmax'"),
        ("classification", context(Data(), output="values"), "'made-up' with .* 'class', .* 'values'"),
        ("knn", of_values(TRUE, TRUE, NAMES), "of the kind 'class'. Received: 'made-up' with .* 'values'"),
    ],
)
def test_other_models_and_labels_are_refused(evaluator, where, message):
    with pytest.raises(ValueError, match=f"The evaluator {evaluator!r} cannot run: .*{message}"):
        evaluators.Suite([evaluator]).check(where)


def test_arrays_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match=r"shape \[N, k\]. Received: \(50, 3\) and \(50, 2\)"):
        metrics.regression_errors(TRUE, PREDICTED[:, :2])
