"""Wrong labels, found by confident learning from the probabilities of a classifier that did not learn the label.

References:
    Northcutt et al. 2021, "Confident Learning: Estimating Uncertainty in Dataset Labels"
"""

import numpy as np

from keras_vit.evaluators.linear_probe import LogisticRegression
from keras_vit.util.progress import track

FOLDS = 5
L2 = tuple(10.0**-k for k in range(6))  # strengths of the regularization, from the strongest to the weakest


def out_of_fold(
    features: np.ndarray, labels: np.ndarray, num_classes: int, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Predict the classes of each image with logistic regressions that did not learn from the image.

    The images of a class are spread over the folds. The regularization is weakened as long as the loss on the images of
    the first fold decreases.

    Args:
        features, labels: Features `[N, D]` and class numbers `[N]`.
        num_classes: Number of classes `C`.
        groups: Number of the group of each image. The images of a group, such as near duplicates, are in the same fold.

    Returns:
        Probabilities `[N, C]`, and whether they are known, bool `[N]`: not for a class whose images are in one fold.
    """
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    probabilities, known = np.zeros((len(labels), num_classes), np.float32), np.zeros(len(labels), bool)
    counts = np.bincount(labels[first], minlength=num_classes)
    if len(first) < FOLDS or (counts > 1).sum() < 2:
        return probabilities, known
    order = np.lexsort((np.random.default_rng(0).permutation(len(first)), labels[first]))
    folds = np.argsort(order)[group] % FOLDS
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
    return probabilities, (counts > 1)[labels]


def quality(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the normalized margin of each label: 0 if another class is certain, 1 if the label is certain.

    This is the difference between the probability of the label and the largest probability of another class, mapped
    from [-1, 1] to [0, 1].
    """
    rows, others = np.arange(len(labels)), probabilities.copy()
    others[rows, labels] = -np.inf
    return (probabilities[rows, labels] - others.max(axis=1) + 1) / 2


def suspicious(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return whether each label is counted as wrong in the confident joint, bool `[N]`.

    The threshold of a class is the mean probability of the class over the images with its label. A label is counted as
    wrong if another class is the most probable of the classes whose thresholds are reached.
    """
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    own = probabilities[np.arange(len(labels)), labels]
    sums = np.bincount(labels, own, minlength=probabilities.shape[1])
    thresholds = np.where(counts, sums / np.maximum(counts, 1), np.inf)
    reached = probabilities >= thresholds - 1e-6  # tolerance for the rounding of equal probabilities
    best = np.where(reached, probabilities, -1).argmax(axis=1)
    return reached.any(axis=1) & (best != labels)
