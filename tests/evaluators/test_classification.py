"""Metrics against values worked out by hand and against their plain definitions."""

import numpy as np
import pytest
from scipy import stats

from keras_vit import evaluators
from keras_vit.evaluators import ClassificationMetrics, classification, confidence
from keras_vit.util import metrics


def measure(scores, labels, mask=None, **options):
    metrics = evaluators.ClassificationMetrics(np.shape(scores)[-1], **options)
    metrics.update(np.asarray(scores), np.asarray(labels), mask)
    return metrics.result()


def test_metrics_of_three_examples_match_hand_computation():
    # Softmax of (log 1, log 2, log 1) is (1/4, 1/2, 1/4).
    scores = np.log([[1.0, 2.0, 1.0], [1.0, 2.0, 1.0], [6.0, 1.0, 1.0]])
    result = measure(scores, [1, 0, 0])
    assert result["examples"] == 3
    assert result["accuracy"] == pytest.approx(2 / 3)
    assert result["top5"] == 1.0  # there are only three classes
    assert result["loss"] == pytest.approx(-(np.log(1 / 2) + np.log(1 / 4) + np.log(3 / 4)) / 3)
    np.testing.assert_array_equal(result["confusion"], [[1, 1, 0], [0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(result["per_class"], [0.5, 1.0, np.nan])
    # Two bins hold examples: confidence 1/2 (one of two right), confidence 3/4 (one of one right).
    assert result["ece"] == pytest.approx((abs(1 - 1.0) + abs(1 - 0.75)) / 3)


def test_top5_accuracy_counts_the_five_best():
    scores = np.tile(np.arange(10.0), (10, 1))  # class 9 is the best, class 5 the fifth
    result = measure(scores, np.arange(10))
    assert result["top5"] == 0.5
    assert result["accuracy"] == 0.1


def test_ties_are_resolved_to_the_lowest_class():
    result = measure(np.zeros((7, 7)), np.arange(7))
    assert result["accuracy"] == pytest.approx(1 / 7)
    assert result["top5"] == pytest.approx(5 / 7)


def test_padding_rows_are_not_counted():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(20, 6)), rng.integers(0, 6, 20)
    padded_scores = np.concatenate([scores, np.full((12, 6), np.nan)])
    padded_labels = np.concatenate([labels, np.full(12, -1)])
    mask = np.repeat([1.0, 0.0], [20, 12])
    plain, padded = measure(scores, labels), measure(padded_scores, padded_labels, mask)
    for name in plain:
        np.testing.assert_array_equal(plain[name], padded[name])


def test_batches_of_any_size_give_the_same_result():
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(size=(50, 8)), rng.integers(0, 8, 50)
    results = []
    for size in (1, 7, 50):
        batches = [{"image": scores[i : i + size], "label": labels[i : i + size]} for i in range(0, 50, size)]
        results.append(evaluators.evaluate(lambda rows: rows, batches, 8))
    for result in results[1:]:
        assert result["accuracy"] == results[0]["accuracy"]
        # Sums in another order differ in the last bits of float64.
        assert result["loss"] == pytest.approx(results[0]["loss"], rel=1e-12)
        assert result["ece"] == pytest.approx(results[0]["ece"], rel=1e-12)
        np.testing.assert_array_equal(result["confusion"], results[0]["confusion"])


@pytest.mark.parametrize("output", ["softmax", "sigmoid"])
def test_probabilities_and_their_logits_give_equal_metrics(output):
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(scale=3, size=(40, 5)), rng.integers(0, 5, 40)
    if output == "softmax":
        probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    else:
        probabilities = 1 / (1 + np.exp(-logits))
    a = measure(logits, labels, output=output)
    b = measure(probabilities, labels, output=output, scores_are="probabilities")
    for name in ("accuracy", "top5", "loss", "ece"):
        assert a[name] == pytest.approx(b[name], rel=1e-9)  # exp and log round at 1e-16, scaled by |logit| < 15


def test_extreme_logits_have_a_finite_loss():
    assert measure([[1e4, -1e4]], [1])["loss"] == pytest.approx(2e4)
    assert measure([[1e4, -1e4]], [1], output="sigmoid")["loss"] == pytest.approx(2e4)
    # Of float32 probabilities, 0 counts as the smallest normal number, 2^-126, and 1 as the number below 1, 1 - 2^-24.
    loss = measure([[1.0, 0.0]], [1], scores_are="probabilities")["loss"]
    assert loss == pytest.approx(126 * np.log(2))
    loss = measure([[1.0, 0.0]], [1], scores_are="probabilities", output="sigmoid")["loss"]
    assert loss == pytest.approx((126 + 24) * np.log(2))


def test_rows_of_nan_count_as_wrong():
    result = measure([[np.nan, np.nan], [1.0, 0.0]], [0, 0])
    assert result["accuracy"] == result["top5"] == 0.5
    assert result["non_finite"] == 1
    assert result["examples"] == 2
    assert np.isnan(result["loss"])
    np.testing.assert_array_equal(result["confusion"], [[1, 0], [0, 0]])  # NaN is no predicted class
    assert result["ece"] == pytest.approx(1 - 1 / (1 + np.exp(-1)))  # of the other row
    assert np.isnan(measure([[np.nan, 0.0]], [0])["ece"])


def test_rows_of_nan_count_as_wrong_for_several_labels():
    """The first row has a large finite score for a true class, which does not count either."""
    result = measure([[np.nan, 5.0], [2.0, -2.0]], [[1, 1], [1, 0]], output="sigmoid")
    assert result["accuracy"] == 0.5 and result["per_class"].tolist() == [0.5, 0.0]
    assert result["mean_average_precision"] == pytest.approx((1 + 1 / 2) / 2)  # the second class: at the second rank
    assert result["ece"] == pytest.approx(1 / (1 + np.exp(2)))
    assert np.isnan(measure([[0.0, 1.0]], [[0, 0]], output="sigmoid")["mean_average_precision"])


def test_calibration_error_of_a_perfectly_calibrated_model_is_zero():
    # 100 predictions with confidence 0.8, 80 of them right.
    probabilities = np.tile([0.8, 0.2], (100, 1))
    labels = np.repeat([0, 1], [80, 20])
    assert measure(probabilities, labels, scores_are="probabilities")["ece"] == pytest.approx(0.0, abs=1e-12)
    assert measure(probabilities, 1 - labels, scores_are="probabilities")["ece"] == pytest.approx(0.6)


def test_equal_scores_share_a_rank_as_in_scikit_learn():
    """A model with the same prediction for every image has the precision of chance, in any order of the images."""
    scores, targets = np.zeros((4, 1)), np.array([[True], [False], [False], [False]])
    assert metrics.mean_average_precision(scores, targets) == metrics.mean_average_precision(scores, targets[::-1])
    sklearn, rng = pytest.importorskip("sklearn.metrics"), np.random.default_rng(0)
    scores, targets = rng.integers(0, 9, (64, 5)).astype("float32"), rng.random((64, 5)) < 0.3
    expected = sklearn.average_precision_score(targets, scores, average="macro")
    assert metrics.mean_average_precision(scores, targets) == pytest.approx(expected)


def test_the_result_with_several_classes_has_no_top_1_accuracy():
    found = classification.to_result(measure([[1.0, -1.0]], [[1, 0]], output="sigmoid"))
    assert list(found.metrics) == ["mean_average_precision", "loss", "ece", "examples"]
    assert found.details["remark"] is None


def test_multi_label_metrics_match_hand_computation():
    scores = np.array([[2.0, -1.0, 1.0], [-3.0, 1.0, 2.0], [0.5, -2.0, -1.0]])
    labels = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1]])
    result = measure(scores, labels, output="sigmoid")
    assert result["accuracy"] == pytest.approx(2 / 3)  # the best class is one of the true ones
    assert result["confusion"] is None
    np.testing.assert_allclose(result["per_class"], [1.0, 1.0, 0.0])
    assert measure([[0.0, -1.0]], [[1, 1]], output="sigmoid")["per_class"].tolist() == [1.0, 0.0]  # exactly 0.5 is in
    # Class 0: ranks 1 and 2 of (2, .5, -3) are its two -> 1. Class 1: rank 1 -> 1. Class 2: (2, 1, -1) third -> 1/3.
    assert result["mean_average_precision"] == pytest.approx((1 + 1 + 1 / 3) / 3)
    signs = np.where(labels, 1, -1)
    assert result["loss"] == pytest.approx(np.log1p(np.exp(-signs * scores)).sum() / 3)


@pytest.mark.parametrize(
    ("scores", "labels", "options", "message"),
    [
        (np.zeros((2, 3)), [0, 3], {}, r"labels must be in \[0, 3\)\. Received: 3"),
        (np.zeros((2, 3)), [0, -1], {}, r"labels must be in \[0, 3\)\. Received: -1"),
        (np.zeros((2, 3)), [0], {}, "one row for each of the 2 rows"),
        (np.zeros((2, 3)), [0, 1], {"mask": [1.0]}, r"valid of shape \(1,\)"),
        (np.zeros((2, 3)), np.zeros((2, 3)), {}, "need output='sigmoid'"),
        (np.zeros((2, 3)), np.zeros((2, 4)), {"output": "sigmoid"}, "3 columns. Received: .* 4 columns"),
    ],
)
def test_wrong_input_is_refused(scores, labels, options, message):
    with pytest.raises(ValueError, match=message):
        measure(scores, labels, **options)


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="`output` must be"):
        evaluators.ClassificationMetrics(3, output="linear")
    with pytest.raises(ValueError, match="Nothing to measure"):
        evaluators.ClassificationMetrics(3).result()
    metrics = evaluators.ClassificationMetrics(2, output="sigmoid")
    metrics.update(np.zeros((1, 2)), np.array([[0, 1]]))
    with pytest.raises(ValueError, match="in every batch or multi-hot rows in every batch"):
        metrics.update(np.zeros((1, 2)), np.array([0]))
    with pytest.raises(ValueError, match=r"scores must have the shape \[B, 4\]"):
        evaluators.evaluate(lambda x: x, [{"image": np.zeros((1, 3)), "label": [0]}], 4)


def test_calibration_bins_include_their_right_edge(monkeypatch):
    """arXiv:1706.04599, section 2: the bins are ((m - 1) / M, m / M]. Here both probabilities are in (0.5, 0.75]."""
    probabilities = np.array([[0.75, 0.25], [0.375, 0.625]])
    monkeypatch.setattr(evaluators.classification, "CALIBRATION_BINS", 4)
    metrics = evaluators.ClassificationMetrics(2, scores_are="probabilities")
    metrics.update(probabilities, np.array([1, 1]))  # the first is wrong, the second right
    assert metrics.result()["ece"] == pytest.approx(abs(1 - 1.375) / 2)


@pytest.mark.parametrize(("correct", "examples"), [(0, 7), (5, 9), (206, 400), (9, 9)])
def test_confidence_interval_is_the_wilson_interval(correct, examples):
    wanted = stats.binomtest(correct, examples).proportion_ci(method="wilson")
    assert confidence.wilson_interval(correct, examples) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def measured(true, predicted, classes):
    metrics = ClassificationMetrics(classes)
    metrics.update(np.eye(classes)[predicted], np.asarray(true))
    return metrics.result()


def test_averages_over_classes_match_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    true = rng.choice(4, 200, p=[0.7, 0.2, 0.1, 0.0])  # the last class has no image, but is predicted
    predicted = np.where(rng.random(200) < 0.6, true, rng.integers(0, 4, 200))
    found = measured(true, predicted, 5)  # a fifth class is neither
    assert found["balanced_accuracy"] == pytest.approx(np.mean(sklearn.recall_score(true, predicted, average=None)[:3]))
    wanted = sklearn.f1_score(true, predicted, average="macro", zero_division=0)
    assert found["macro_f1"] == pytest.approx(wanted)


def test_predicting_the_largest_class_is_not_better_than_chance():
    """Nine of ten images in a class: 90% without having learned anything."""
    found = measured([0] * 90 + [1] * 10, [0] * 100, 2)
    assert (found["accuracy"], found["largest_class"], found["chance"]) == (0.9, 0.9, 0.5)
    assert (found["balanced_accuracy"], found["macro_f1"]) == pytest.approx((0.5, (2 * 90 / 190 + 0) / 2))
    assert found["remark"].startswith("Not better") and "90.00%" in found["remark"]


@pytest.mark.parametrize(
    ("correct", "word"), [(0, "Not better"), (200, "Not better"), (216, "Not significantly"), (217, None)]
)
def test_remark_on_significance_follows_the_exact_binomial_test(correct, word):
    """400 images, half of them in the largest class: 217 is the first number with a probability of at most 5%."""
    p = stats.binomtest(correct, 400, 0.5, alternative="greater").pvalue
    assert (p > 0.05) == (word is not None)
    confusion = np.array([[correct // 2, 200 - correct // 2], [200 - (correct - correct // 2), correct - correct // 2]])
    remark = confidence.in_context(correct, 400, confusion.sum(axis=1), confusion)["remark"]
    assert (remark is None) if word is None else (remark.startswith(word) and f"p = {p:.2g}" in remark)


def test_multi_label_chance_is_computed():
    metrics = ClassificationMetrics(3, output="sigmoid")
    metrics.update(np.eye(3)[[0, 0, 0, 1]], np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1]]))
    found = metrics.result()
    assert found["chance"] == pytest.approx(5 / 12)  # of twelve pairs of image and class, five are right
    assert found["largest_class"] == 0.75 and found["balanced_accuracy"] is None


def test_report_of_a_run_has_confidence_interval_and_chance():
    lines = confidence.lines(np.array([[90, 0], [10, 0]]))
    assert lines[0] == "95% confidence interval 82.56% to 94.48%"  # Wilson's, of 90 of 100
    assert lines[1] == "chance 50.00%, largest class 90.00%, balanced accuracy 50.00%, macro F1 47.37%"
    assert lines[2].startswith("Not better") and len(lines) == 3
    assert len(confidence.lines(np.diag([50, 50]))) == 2
