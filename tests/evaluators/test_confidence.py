"""Numbers beside an accuracy, against scipy's and scikit-learn's and by hand."""

import numpy as np
import pytest
from scipy import stats

from keras_vit.evaluators import ClassificationMetrics, confidence
from keras_vit.training import run_summary


@pytest.mark.parametrize(("correct", "examples"), [(0, 7), (5, 9), (206, 400), (9, 9)])
def test_the_interval_is_that_of_wilson(correct, examples):
    wanted = stats.binomtest(correct, examples).proportion_ci(method="wilson")
    assert confidence.wilson_interval(correct, examples) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def measured(true, predicted, classes):
    metrics = ClassificationMetrics(classes)
    metrics.update(np.eye(classes)[predicted], np.asarray(true))
    return metrics.result()


def test_averages_over_classes_are_those_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    true = rng.choice(4, 200, p=[0.7, 0.2, 0.1, 0.0])  # the last class has no image, but is predicted
    predicted = np.where(rng.random(200) < 0.6, true, rng.integers(0, 4, 200))
    found = measured(true, predicted, 5)  # a fifth class is neither
    assert found["balanced_accuracy"] == pytest.approx(np.mean(sklearn.recall_score(true, predicted, average=None)[:3]))
    wanted = sklearn.f1_score(true, predicted, average="macro", zero_division=0)
    assert found["macro_f1"] == pytest.approx(wanted)


def test_one_class_for_all_images_is_not_better_than_itself():
    """Nine of ten images in a class: 90% without having learned anything."""
    found = measured([0] * 90 + [1] * 10, [0] * 100, 2)
    assert (found["accuracy"], found["largest_class"], found["chance"]) == (0.9, 0.9, 0.5)
    assert (found["balanced_accuracy"], found["macro_f1"]) == pytest.approx((0.5, (2 * 90 / 190 + 0) / 2))
    assert found["remark"].startswith("Not better") and "90.00%" in found["remark"]


@pytest.mark.parametrize(
    ("correct", "word"), [(0, "Not better"), (200, "Not better"), (216, "Not significantly"), (217, None)]
)
def test_the_remark_follows_the_exact_binomial_test(correct, word):
    """400 images, half of them in the largest class: 217 is the first number with a probability of at most 5%."""
    p = stats.binomtest(correct, 400, 0.5, alternative="greater").pvalue
    assert (p > 0.05) == (word is not None)
    confusion = np.array([[correct // 2, 200 - correct // 2], [200 - (correct - correct // 2), correct - correct // 2]])
    remark = confidence.in_context(correct, 400, confusion.sum(axis=1), confusion)["remark"]
    assert (remark is None) if word is None else (remark.startswith(word) and f"p = {p:.2g}" in remark)


def test_several_classes_per_image():
    metrics = ClassificationMetrics(3, output="sigmoid")
    metrics.update(np.eye(3)[[0, 0, 0, 1]], np.array([[1, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1]]))
    found = metrics.result()
    assert found["chance"] == pytest.approx(5 / 12)  # of twelve pairs of image and class, five are right
    assert found["largest_class"] == 0.75 and found["balanced_accuracy"] is None


def test_the_report_of_a_run_has_them():
    lines = run_summary.accuracy_lines(np.array([[90, 0], [10, 0]]))
    assert lines[0] == "95% confidence interval 82.56% to 94.48%"  # Wilson's, of 90 of 100
    assert lines[1] == "chance 50.00%, largest class 90.00%, balanced accuracy 50.00%, macro F1 47.37%"
    assert lines[2].startswith("Not better") and len(lines) == 3
    assert len(run_summary.accuracy_lines(np.diag([50, 50]))) == 2
