"""Comparison of an artifact with the model that it was exported from, on real images."""

import dataclasses
from typing import Any

import numpy as np

from keras_vit.evaluators.confidence import examples_for, wilson_interval
from keras_vit.inference.model_card import ModelCard
from keras_vit.outputs import PRECISIONS, Output, Tolerance, of
from keras_vit.util.formatting import percent
from keras_vit.util.metrics import is_correct

NOTICEABLE = 0.05  # a probability that changes by more may be on the other side of a threshold


class VerificationError(RuntimeError):
    """The outputs of an artifact differ from the outputs of its model.

    Attributes:
        comparison: The measured differences; None if nothing was measured.
    """

    def __init__(self, message: str, comparison: "Comparison | None" = None):
        super().__init__(message)
        self.comparison = comparison


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Differences between the predictions of a model and of its artifact for the same images.

    Attributes:
        examples: Number of images.
        max_difference: Largest absolute difference of a probability. Differences of values are in standard deviations;
            differences of scores and features are relative to the largest number. For masks, the largest fraction of
            pixels of an image that differ.
        mean_difference: Mean absolute difference, in the same unit.
        top1_agreement: Fraction of the images (for masks, of the pixels) for which model and artifact predict the same
            class. None without classes.
        reference_accuracy: Accuracy of the model; None without labels.
        accuracy: Accuracy of the artifact; None without labels.
        output: Output that was compared: `"probabilities"`, `"values"`, `"mask"`, `"scores"` or `"features"`.
        precision: Precision of the artifact's computation on the machine of the comparison.

    Example:
    >>> Comparison(examples=100, max_difference=1e-6, mean_difference=1e-7, top1_agreement=1.0).summary()
    '100 images, largest difference 1.0e-06, top-1 agreement 100.00% (95% interval from 96.30%)'
    """

    examples: int
    max_difference: float
    mean_difference: float
    top1_agreement: float | None = None
    reference_accuracy: float | None = None
    accuracy: float | None = None
    output: str = "probabilities"
    precision: str = ""

    @property
    def kind(self) -> Output:
        """Kind of the output."""
        return of(self.output)

    @property
    def agreement_low(self) -> float | None:
        """Lower end of the 95% confidence interval of the top-1 agreement; None for other outputs than classes."""
        if self.top1_agreement is None or not self.kind.has_probabilities:
            return None
        return wilson_interval(round(self.top1_agreement * self.examples), self.examples)[0]

    def summary(self) -> str:
        """Describe the comparison in one line."""
        text = f"{self.examples} images, largest difference {self.max_difference:.1e}{self.kind.unit}"
        if self.top1_agreement is not None:
            text += f", top-1 agreement {percent(self.top1_agreement, 2)}"
        if self.agreement_low is not None:
            text += f" (95% interval from {percent(self.agreement_low, 2)})"
        if self.accuracy is not None and self.reference_accuracy is not None:
            text += f", accuracy {percent(self.accuracy, 2)} (model: {percent(self.reference_accuracy, 2)})"
        return f"{text}, computed in {self.precision}" if self.precision else text


def compare(
    reference: np.ndarray, candidate: np.ndarray, labels: np.ndarray | None = None, tie: float = 1e-5
) -> Comparison:
    """Compare the probabilities `[N, classes]` of a model and of an artifact.

    `labels` are true classes `[N]` or multi-hot rows `[N, classes]`; None if unknown. If the model's probabilities of
    two top classes differ by less than `tie`, the artifact may predict either class: rounding decides between them.
    """
    reference, candidate = np.asarray(reference, np.float64), np.asarray(candidate, np.float64)
    if reference.shape != candidate.shape or reference.ndim != 2 or not len(reference):
        raise ValueError(
            f"Expected two equal shapes [N, classes] with N > 0. Received: {reference.shape} and {candidate.shape}."
        )
    difference = np.abs(reference - candidate)
    finite = np.isfinite(candidate).all(axis=-1)
    difference = np.where(np.isfinite(difference), difference, np.inf)
    if reference.shape[1] == 1:  # a single sigmoid, which decides between two classes
        reference, candidate = (np.concatenate([values, 1.0 - values], axis=1) for values in (reference, candidate))
    chosen = np.where(finite, np.argmax(np.nan_to_num(candidate), axis=-1), 0)
    rows = np.arange(len(reference))
    agrees = finite & (reference[rows, chosen] >= reference.max(axis=-1) - tie)
    accuracies: dict[str, Any] = {}
    if labels is not None:
        accuracies = {
            "reference_accuracy": float(is_correct(np.argmax(reference, axis=-1), labels).mean()),
            "accuracy": float((finite & is_correct(chosen, labels)).mean()),
        }
    return Comparison(len(rows), float(difference.max()), float(difference.mean()), float(agrees.mean()), **accuracies)


def compare_answers(card: ModelCard, reference: Any, candidate: Any, labels: np.ndarray | None = None) -> Comparison:
    """Compare predictions `[N, ...]` of a model and an artifact with the same card; `labels` are for probabilities."""
    if card.kind.has_probabilities:
        return compare(reference, candidate, labels)
    found = card.kind.differences(reference, candidate, card.values)
    found = np.where(np.isfinite(found), found, np.inf)
    sizes = [mask.size for mask in reference]
    agreement = 1.0 - float(np.average(found, weights=sizes)) if card.kind.has_masks else None
    return Comparison(len(reference), float(found.max()), float(found.mean()), agreement, output=card.output_name)


def tolerance_of(precision: str, output: str = "softmax") -> Tolerance:
    """Return the tolerance of a precision, which is one of `PRECISIONS` or the name of a Keras policy."""
    name = precision.removeprefix("mixed_")
    if name not in PRECISIONS:
        raise ValueError(f"precision must be one of {sorted(PRECISIONS)}. Received: precision={precision!r}.")
    return of(output).limits[PRECISIONS.index(name)]


def images_for(tolerance: Tolerance) -> int:
    """Return the number of images that can show the top-1 agreement, or 0 if all probabilities must be close."""
    is_close = tolerance.max_difference <= NOTICEABLE or tolerance.top1_agreement >= 1
    return 0 if is_close else examples_for(tolerance.top1_agreement)


def warnings(comparison: Comparison, tolerance: Tolerance) -> list[str]:
    """Return what a comparison within its limits does not show, if it compares probabilities."""
    found, low, needed = [], comparison.agreement_low, images_for(tolerance)
    if comparison.kind.has_probabilities and comparison.max_difference > NOTICEABLE:
        found.append(
            f"A probability differs by {comparison.max_difference:.2f}. Check thresholds on the artifact's own "
            "probabilities, set a limit (--max_difference), or export in float16 or float32."
        )
    if needed and low is not None and low < tolerance.top1_agreement:
        found.append(
            f"{comparison.examples} images show a top-1 agreement of {percent(low, 2)} (95% interval), not of "
            f"{percent(tolerance.top1_agreement, 2)}. At least {needed} images are needed (--images, --num_images)."
        )
    return found


def failures(comparison: Comparison, tolerance: Tolerance) -> list[str]:
    """Return a description of each limit that a comparison exceeds."""
    problems = []
    if not comparison.max_difference <= tolerance.max_difference:
        problems.append(
            f"the largest difference of {comparison.kind.number} is "
            f"{comparison.max_difference:.2e}{comparison.kind.unit}, expected at most {tolerance.max_difference:.2e}"
        )
    if comparison.top1_agreement is not None and comparison.top1_agreement < tolerance.top1_agreement:
        problems.append(
            f"the top-1 agreement is {percent(comparison.top1_agreement, 2)}, expected at least "
            f"{percent(tolerance.top1_agreement, 2)}"
        )
    accuracies = comparison.reference_accuracy, comparison.accuracy
    if tolerance.accuracy_drop is not None and accuracies[0] is not None and accuracies[1] is not None:
        drop = round(accuracies[0] - accuracies[1], 9)  # 1.0 - 0.99 is larger than 0.01
        if drop > tolerance.accuracy_drop:
            problems.append(
                f"the accuracy falls by {percent(drop, 2)}, expected at most {percent(tolerance.accuracy_drop, 2)}: "
                "calibrate with more training images, or export with precision='float16'"
            )
    return problems
