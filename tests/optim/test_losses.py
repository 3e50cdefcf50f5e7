"""Losses against closed forms."""

import numpy as np
import pytest

from keras_vit.optim import cross_entropy, is_correct, smooth_labels

LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0], [-3.0, 4.0, 1.0]], np.float32)
ONE_HOT = np.eye(3, dtype=np.float32)


def test_softmax_cross_entropy_matches_the_formula():
    shares = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    np.testing.assert_allclose(cross_entropy(LOGITS, ONE_HOT), -np.log(np.diag(shares)), rtol=1e-6)
    soft = np.array([[0.7, 0.2, 0.1]] * 3, np.float32)
    np.testing.assert_allclose(cross_entropy(LOGITS, soft), -(soft * np.log(shares)).sum(-1), rtol=1e-6)


def test_sigmoid_cross_entropy_is_the_sum_over_classes():
    several = np.array([[1, 0, 1], [0, 0, 0], [0.5, 1, 0]], np.float32)
    p = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
    expected = -(several * np.log(p) + (1 - several) * np.log(1 - p)).sum(-1)
    np.testing.assert_allclose(cross_entropy(LOGITS, several, "sigmoid"), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_huge_logits_stay_finite(kind):
    losses = np.asarray(cross_entropy(1e4 * LOGITS, ONE_HOT, kind))
    assert np.isfinite(losses).all()
    assert losses.dtype == np.float32


def test_half_precision_logits_give_float32_losses():
    import ml_dtypes

    assert np.asarray(cross_entropy(LOGITS.astype(ml_dtypes.bfloat16), ONE_HOT)).dtype == np.float32


def test_unknown_loss_is_refused():
    with pytest.raises(ValueError, match='"softmax" or "sigmoid".*\'hinge\''):
        cross_entropy(LOGITS, ONE_HOT, "hinge")


def test_label_smoothing_keeps_the_sum():
    np.testing.assert_allclose(smooth_labels(ONE_HOT, 0.3)[0], [0.8, 0.1, 0.1], rtol=1e-6)
    assert smooth_labels(ONE_HOT, 0.0) is ONE_HOT


def test_prediction_is_correct_if_it_is_among_the_largest_labels():
    several = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0]], np.float32)
    assert np.asarray(is_correct(LOGITS, several)).tolist() == [1, 0, 0]
    mixed = np.array([[0.6, 0.4, 0], [0.6, 0.4, 0], [0.6, 0.4, 0]], np.float32)
    assert np.asarray(is_correct(LOGITS, mixed)).tolist() == [1, 1, 0]
