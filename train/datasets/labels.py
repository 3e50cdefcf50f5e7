"""Wrong labels, found by confident learning: a classifier that did not learn a label judges it.

References:
    Northcutt et al. 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels"
"""

import numpy as np
from scipy import special

from keras_vit.evaluators.linear_fit import FOLDS, LinearFit, softmax_loss, stratified_folds
from keras_vit.util.progress import track


def out_of_fold(features: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Predict the classes of each image with logistic regressions that did not learn from the image.

    The images of a class are spread over the folds. The loss on held-out images chooses the regularization.

    Args:
        features: Features, `[N, D]`.
        labels: Class numbers, `[N]`.
        num_classes: Number of classes `C`.

    Returns:
        Probabilities `[N, C]`. NaN for a class with one image, and for all images if there is nothing to compare.
    """
    counts = np.bincount(labels, minlength=num_classes)
    probabilities = np.full((len(labels), num_classes), np.nan, np.float32)
    if len(labels) < FOLDS or (counts > 1).sum() < 2:
        return probabilities
    fit = LinearFit(features[None], np.eye(num_classes)[labels], softmax_loss)
    folds = stratified_folds(len(labels), labels)
    strength, _ = fit.choose(folds)
    for fold in track(range(FOLDS), "Out-of-fold predictions", unit="folds"):
        held_out = folds == fold
        probabilities[held_out] = special.softmax(fit.outputs(fit.solve(strength, ~held_out), held_out), axis=1)
    return probabilities


def count_wrong(probabilities: np.ndarray, labels: np.ndarray) -> int:
    """Return the number of labels that the confident joint counts as wrong, for probabilities without NaN.

    The threshold of a class is the mean probability of the class over the images with its label. A label is counted as
    wrong if another class is the most probable of the classes whose thresholds are reached.
    """
    own = probabilities[np.arange(len(labels)), labels]
    sums, counts = (np.bincount(labels, weights, probabilities.shape[1]) for weights in (own, None))
    thresholds = np.where(counts, sums / np.maximum(counts, 1), np.inf)
    reached = probabilities >= thresholds - 1e-6  # tolerance for the rounding of equal probabilities
    best = np.where(reached, probabilities, -1).argmax(axis=1)
    return int((reached.any(axis=1) & (best != labels)).sum())
