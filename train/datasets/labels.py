"""Wrong labels, found by confident learning: a classifier that did not learn a label judges it.

References:
    Northcutt et al. 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels"
"""

import numpy as np

from keras_vit.evaluators.linear_probe import LogisticRegression
from keras_vit.util.progress import track

FOLDS = 5
L2 = tuple(10.0 ** (-k / 2) for k in range(9))  # strengths of the regularization, the strongest first


def out_of_fold(features: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Predict the classes of each image with logistic regressions that did not learn from the image.

    The images of a class are spread over the folds. The regularization is weakened as long as the loss on the images of
    the first fold decreases.

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
    order = np.lexsort((np.random.default_rng(0).permutation(len(labels)), labels))
    folds = np.argsort(order) % FOLDS  # the images of a class are in consecutive folds
    fit, least, l2 = None, np.inf, L2[0]
    for fold in track(range(FOLDS), "Out-of-fold predictions", unit="folds"):
        held_out = folds == fold
        for strength in L2 if fold == 0 else (l2,):
            fit = LogisticRegression(features[~held_out], labels[~held_out], num_classes, strength, fit)
            found = fit.probabilities(features[held_out])
            loss = -np.log(np.maximum(found[np.arange(len(found)), labels[held_out]], 1e-12)).mean()
            if fold == 0 and loss >= least:
                break
            probabilities[held_out], least, l2 = found, loss, strength
    probabilities[counts[labels] < 2] = np.nan
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
