import dataclasses

import numpy as np
import pytest

from keras_vit import outputs
from keras_vit.exporting import artifact_check, verify

REFERENCE = np.array([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.1, 0.1, 0.8], [0.5, 0.5, 0.0]])


def test_equal_predictions_agree():
    comparison = verify.compare(REFERENCE, REFERENCE, np.array([0, 0, 2, 0]))
    assert comparison == verify.Comparison(4, 0.0, 0.0, 1.0, 0.75, 0.75)
    assert verify.failures(comparison, verify.Tolerance(0.0, 1.0, 0.0)) == []


def test_differences_match_hand_computation():
    candidate = REFERENCE.copy()
    candidate[1] = [0.45, 0.25, 0.3]  # another prediction
    candidate[3] = [0.5 - 1e-7, 0.5 + 1e-7, 0.0]  # a tie, resolved differently
    comparison = verify.compare(REFERENCE, candidate, np.array([0, 1, 2, 0]))
    assert comparison.max_difference == pytest.approx(0.15)
    assert comparison.mean_difference == pytest.approx(0.3 / 12, rel=1e-5)
    assert comparison.top1_agreement == 0.75
    assert comparison.reference_accuracy == 1.0
    assert comparison.accuracy == 0.5


def test_accuracy_is_not_reported_without_labels():
    comparison = verify.compare(REFERENCE, REFERENCE)
    assert comparison.accuracy is None
    assert "accuracy" not in comparison.summary()
    assert verify.failures(comparison, verify.Tolerance(0.1, 1.0, accuracy_drop=0.0)) == []


def test_multi_label_accuracy_is_computed():
    labels = np.array([[1, 1, 0], [0, 0, 1], [0, 0, 1], [0, 1, 0]])
    assert verify.compare(REFERENCE, REFERENCE, labels).accuracy == 0.5


def test_single_probability_is_compared_at_one_half():
    """The outputs of an 8-bit file may differ by much, but the predicted class must not."""
    reference = np.array([[0.9], [0.6], [0.2], [0.4]])
    candidate = np.array([[0.6], [0.9], [0.4], [0.6]])  # the last one crosses one half
    comparison = verify.compare(reference, candidate)
    assert comparison.top1_agreement == 0.75
    assert comparison.max_difference == pytest.approx(0.3)
    assert verify.failures(comparison, verify.tolerance_of("dynamic_int8"))
    assert verify.compare(reference, candidate, np.zeros(4, int)).accuracy == 0.75


def test_nan_never_passes():
    candidate = np.full_like(REFERENCE, np.nan)
    comparison = verify.compare(REFERENCE, candidate, np.zeros(4, int))
    assert comparison.max_difference == np.inf
    assert comparison.top1_agreement == comparison.accuracy == 0.0
    assert len(verify.failures(comparison, verify.tolerance_of("float32"))) == 2


def test_all_problems_are_reported():
    comparison = verify.Comparison(10, 0.5, 0.1, 0.8, 0.9, 0.7)
    with pytest.raises(verify.VerificationError) as caught:
        problems = verify.failures(comparison, verify.Tolerance(0.1, 0.9, 0.05))
        artifact_check.require((comparison, problems), "The file", "dynamic_int8")
    message = str(caught.value)
    assert "The file does not match its model" in message
    for part in ("5.00e-01, expected at most 1.00e-01", "80.00%, expected at least 90.00%", "falls by 20.00%"):
        assert part in message
    for remedy in ("float16", "float32", "--min_agreement", "--max_difference", "`tolerance`"):
        assert remedy in message


def test_tolerances_of_every_precision():
    """Largest difference and agreement of probabilities, largest relative difference, and agreement of masks."""
    expected = {
        "float32": (1e-4, 1.0, 1e-4, 0.999),
        "bfloat16": (0.1, 0.98, 0.1, 0.98),
        "float16": (0.02, 0.999, 0.02, 0.995),
        "dynamic_int8": (0.5, 0.99, 0.1, 0.97),
        "int8": (1.0, 0.9, 0.25, 0.9),
        "int16x8": (1.0, 0.95, 0.25, 0.95),
    }
    assert tuple(expected) == outputs.PRECISIONS
    for precision, (difference, agreement, relative, of_masks) in expected.items():
        drop = 0.01 if precision in ("int8", "int16x8") else None
        for output in ("softmax", "sigmoid"):
            assert verify.tolerance_of(precision, output) == verify.Tolerance(difference, agreement, drop)
        for output in ("values", "scores", "features"):
            assert verify.tolerance_of(precision, output) == verify.Tolerance(relative)
        assert verify.tolerance_of(precision, "mask") == verify.Tolerance(1.0, of_masks)
    assert verify.tolerance_of("mixed_bfloat16") == verify.Tolerance(0.1, 0.98)
    with pytest.raises(ValueError, match="precision must be one of"):
        verify.tolerance_of("int3")


def test_comparison_is_summarized_in_one_line():
    probabilities = verify.Comparison(10, 0.5, 0.1, 0.8, 0.9, 0.7, precision="int8")
    expected = "10 images, largest difference 5.0e-01, top-1 agreement 80.00% (95% interval from 49.02%), accuracy"
    assert probabilities.summary() == f"{expected} 70.00% (model: 90.00%), computed in int8"
    for output, unit in (("values", " standard deviations"), ("mask", " of the pixels"), ("scores", "")):
        comparison = verify.Comparison(1, 0.25, 0.1, output=output)
        assert comparison.summary() == f"1 images, largest difference 2.5e-01{unit}"
    (problem,) = verify.failures(comparison, verify.Tolerance(0.2))
    assert problem.startswith("the largest difference of an output, relative to the largest output, is 2.50e-01, ")
    for equal in (verify.Tolerance(0.25), verify.Tolerance(1.0, top1_agreement=1.0)):
        assert verify.failures(comparison, equal) == []
    assert verify.failures(probabilities, verify.Tolerance(0.5, 0.8)) == []


def test_warnings_state_the_limits_of_the_sample():
    int8, agrees = verify.tolerance_of("dynamic_int8"), verify.Comparison(48, 0.22, 0.01, 1.0)
    assert agrees.agreement_low == pytest.approx(48 / (48 + 1.959964**2), rel=1e-6)  # Wilson's interval of 48 of 48
    moved, small = verify.warnings(agrees, int8)
    assert "0.22" in moved and "--max_difference" in moved
    assert "48 images" in small and "92.59%" in small and "381 images" in small
    enough = dataclasses.replace(agrees, examples=381, max_difference=0.05)
    assert verify.warnings(enough, int8) == [] and enough.agreement_low >= 0.99
    assert len(verify.warnings(dataclasses.replace(enough, examples=380), int8)) == 1
    needed = {name: verify.images_for(verify.tolerance_of(name)) for name in outputs.PRECISIONS}
    assert needed == {
        **{"float32": 0, "float16": 0, "bfloat16": 189},  # close probabilities keep their class
        **{"dynamic_int8": 381, "int8": 35, "int16x8": 73},
    }
    assert verify.warnings(dataclasses.replace(agrees, output="mask"), int8) == []


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="two equal shapes"):
        verify.compare(REFERENCE, REFERENCE[:2])


@pytest.mark.parametrize(
    ("precision", "drop", "passes"), [("int8", 0.01, True), ("int8", 0.012, False), ("int16x8", 0.02, False)]
)
def test_an_integer_file_may_lose_one_point_of_accuracy(precision, drop, passes):
    """500 images, of which the artifact names some wrongly; it agrees with the model on all others."""
    labels = np.arange(500) % 2
    reference = np.where(labels[:, None] == np.arange(2), 0.9, 0.1)
    candidate = reference.copy()
    candidate[: round(500 * drop)] = candidate[: round(500 * drop), ::-1]
    comparison = verify.compare(reference, candidate, labels)
    assert comparison.accuracy == pytest.approx(1 - drop)
    problems = verify.failures(comparison, verify.tolerance_of(precision))
    assert [("accuracy" in problem) for problem in problems] == ([] if passes else [True])
    assert all("'float16'" in problem for problem in problems)  # what to do


def test_a_tie_is_a_difference_below_rounding():
    reference = np.array([[0.5, 0.5 - 5e-6], [0.5, 0.5 - 1e-4]])
    assert verify.compare(reference, reference[:, ::-1]).top1_agreement == 0.5


@pytest.mark.parametrize(("accuracy", "problems"), [(0.9, 0), (0.5, 0), (0.495, 0), (0.48, 1)])
def test_only_a_loss_of_accuracy_is_a_problem(accuracy, problems):
    comparison = verify.Comparison(100, 0.1, 0.01, top1_agreement=1.0, reference_accuracy=0.5, accuracy=accuracy)
    assert len(verify.failures(comparison, verify.Tolerance(1.0, 0.9, accuracy_drop=0.01))) == problems
