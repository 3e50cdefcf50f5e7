"""Linear maps fitted to features, against their derivatives, scikit-learn and closed forms."""

import numpy as np
import pytest

from keras_vit.evaluators import linear_fit
from keras_vit.evaluators.linear_fit import LinearFit, stratified_folds
from keras_vit.layers.interpolation import interpolation_matrix

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(80, 6)) @ RNG.normal(size=(6, 6)) + 3.0


def standardized(features):
    return (features - features.mean(axis=0)) / (features.std(axis=0) + 1e-5)


LABELS = (standardized(FEATURES) @ RNG.normal(size=(6, 3)) + RNG.normal(size=(80, 3))).argmax(axis=1)


@pytest.mark.parametrize("name", list(linear_fit.LOSSES))
@pytest.mark.parametrize("is_dense", [False, True])
def test_losses_have_the_exact_gradient(name, is_dense):
    loss, shape = linear_fit.LOSSES[name], (2, 3, 4, 2) if is_dense else (5, 2)
    if is_dense:
        loss = linear_fit.on_grid(loss, *(interpolation_matrix(2 * size, size, "bilinear", np) for size in shape[1:3]))
        targets = RNG.uniform(size=(2, 6, 8, 2)) * (RNG.uniform(size=(2, 6, 8, 1)) > 0.3)  # some pixels do not count
    else:
        targets = RNG.uniform(size=shape)
    outputs = RNG.normal(size=shape)
    gradient, found = loss(outputs, targets)[1], np.zeros(shape)
    for place in np.ndindex(shape):
        step = np.zeros(shape)
        step[place] = 1e-5
        found[place] = (loss(outputs + step, targets)[0] - loss(outputs - step, targets)[0]) / 2e-5
    np.testing.assert_allclose(gradient, found, atol=1e-8)  # the error is of the order of the step squared


@pytest.mark.parametrize("l2", [1.0, 0.01])
def test_solution_matches_scikit_learn(l2):
    sklearn = pytest.importorskip("sklearn.linear_model")
    expected = sklearn.LogisticRegression(C=1 / (l2 * 80), tol=1e-10, max_iter=10_000)
    expected = expected.fit(standardized(FEATURES), LABELS).decision_function(standardized(FEATURES))
    fit = LinearFit(FEATURES[None], np.eye(3)[LABELS], linear_fit.softmax_loss)
    kernel, bias = fit.kernel_and_bias(fit.solve(l2))
    logits = FEATURES @ kernel + bias
    # The gradient is below 1e-5, and the curvature in each direction at least l2.
    np.testing.assert_allclose(
        logits - logits.mean(-1, keepdims=True), expected - expected.mean(-1, keepdims=True), atol=2e-3
    )


def test_the_squared_loss_is_ridge_regression():
    targets = FEATURES[:, :2] + RNG.normal(size=(80, 2))
    fit = LinearFit(FEATURES[None], targets, linear_fit.squared_loss)
    kernel, bias = fit.kernel_and_bias(fit.solve(0.1))
    x = standardized(FEATURES)
    weights = np.linalg.solve(x.T @ x / 80 + 0.1 * np.eye(6), x.T @ (targets - targets.mean(axis=0)) / 80)
    np.testing.assert_allclose(FEATURES @ kernel + bias, x @ weights + targets.mean(axis=0), atol=1e-3)


def test_repeated_views_and_few_examples_give_the_same_fit():
    """Fewer examples than features; the second view repeats the first one."""
    features = RNG.normal(size=(5, 20))
    once, twice = (
        LinearFit(np.stack([features] * views), np.eye(2)[[0, 1, 0, 1, 1]], linear_fit.softmax_loss) for views in (1, 2)
    )
    np.testing.assert_allclose(
        features @ once.kernel_and_bias(once.solve(0.1))[0],
        features @ twice.kernel_and_bias(twice.solve(0.1))[0],
        atol=1e-4,
    )


def test_classes_are_stratified_over_the_folds():
    labels = np.array([0] * 10 + [1] * 5 + [2] * 2 + [3])
    folds = stratified_folds(18, labels)
    np.testing.assert_array_equal([np.bincount(folds[labels == c], minlength=5) for c in (0, 1)], [[2] * 5, [1] * 5])
    assert len(set(folds[labels == 2])) == 2 and folds[-1] == -1
    np.testing.assert_array_equal(np.sort(stratified_folds(7)), [0, 0, 1, 1, 2, 3, 4])


def test_regularization_strength_minimizes_the_held_out_loss():
    fit, folds = LinearFit(FEATURES[None], np.eye(3)[LABELS], linear_fit.softmax_loss), stratified_folds(80, LABELS)
    best, loss = fit.choose(folds)

    def held_out(l2):
        held = [folds == fold for fold in range(5)]
        return np.mean([fit.loss_of(fit.solve(l2, ~each), each) for each in held])

    around = [held_out(factor * best) for factor in (10**0.5, 1, 10**-0.5)]
    assert min(around) == around[1] == pytest.approx(loss, abs=1e-3)
    alone = LinearFit(FEATURES[None, :3], np.eye(3), linear_fit.softmax_loss)  # an example per class
    assert alone.choose(stratified_folds(3, np.arange(3))) == (linear_fit.DEFAULT_STRENGTH, None)


def test_enough_patches_are_held_out(monkeypatch):
    monkeypatch.setattr(linear_fit, "HELD_OUT", 40)
    loss = linear_fit.on_grid(linear_fit.softmax_loss, np.eye(4), np.eye(4))
    features = RNG.normal(size=(1, 10, 4, 4, 2))
    fit = LinearFit(features, np.eye(3)[RNG.integers(3, size=(10, 4, 4))], loss)
    fitted, solve = [], fit.solve

    def counted(l2, *arguments):
        fitted.append(l2)
        return solve(l2, *arguments)

    monkeypatch.setattr(fit, "solve", counted)
    assert fit.choose(stratified_folds(10), (0.1, 0.01))[0] in (0.1, 0.01)
    assert fitted == [0.1, 0.1, 0.01, 0.01]  # each fold has 32 patches of 2 images


def test_rough_fit_has_nearly_the_loss_of_the_exact_fit():
    fit = LinearFit(FEATURES[None] * 1e4, np.eye(3)[LABELS], linear_fit.softmax_loss)
    exact, rough = fit.solve(0.01), fit.solve(0.01, decrease=1e-6)
    assert fit.loss_of(rough, slice(None)) == pytest.approx(fit.loss_of(exact, slice(None)), rel=1e-2)
