"""Outputs of a model: what they are called, how the network's raw output becomes the answer, and how it is shown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit._numbers import percent
from keras_vit._values import Values
from keras_vit.inference import masks

TOP_K = 5
CLASSIFICATION = ("softmax", "sigmoid")
# `output` of a model card -> name of the answer, which is also the name of an artifact's output.
NAMES = {
    **dict.fromkeys(CLASSIFICATION, "probabilities"),
    "values": "values",
    "scores": "scores",  # these two: the raw output as it is
    "features": "features",
    "mask": "mask",
}
# Outputs that are named in order, and the output of a signature that has the names.
NAMED = {"values": "value_names", "mask": "class_names"}

Parts = Sequence[tuple[str, float]]


def to_answers(
    raw: Any, output: str, values: Mapping[str, Any] | None = None, size: tuple[int, int] | None = None
) -> Any:
    """Convert raw outputs of any float type to answers, a tensor of Keras' backend: float32, or integers of masks.

    Args:
        raw: Logits, standardized numbers, scores or features, `[B, k]` or `[B, h, w, k]`.
        output: A key of `NAMES`: `"softmax"` and `"sigmoid"` return probabilities, `"values"` numbers in the data's
            unit, `"mask"` the class of each pixel, `[B, H, W]`, by the logits, enlarged bilinearly.
        values: Names and standardization of values, `Values.to_dict()`.
        size: `(H, W)` of masks.
    """
    if output not in NAMES:
        raise ValueError(f"output must be one of {tuple(NAMES)}. Received: output={output!r}.")
    import keras  # with its backend, which the answers of files do without

    raw = keras.ops.cast(raw, "float32")
    if output == "values":
        return Values.from_dict(values or {}).restore(raw)
    if output == "mask":
        from keras_vit.models.dense_heads import resized

        assert size is not None  # of masks
        # Keras' argmax handles bits, which no converter supports.
        best = keras.ops.top_k(resized(raw, size), 1)[1][..., 0]
        return keras.ops.cast(best, masks.dtype(raw.shape[-1]))
    return getattr(keras.ops, output)(raw) if output in CLASSIFICATION else raw


def is_correct(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return for each image whether its predicted class, of `[N]`, is its label `[N]` or in its multi-hot row."""
    if np.ndim(labels) == 2:
        return np.asarray(labels)[np.arange(len(predicted)), predicted] > 0
    return predicted == np.asarray(labels)


def uncertainty(probabilities: np.ndarray, independent: bool) -> float:
    """Return the uncertainty of probabilities `[k]`, from 0 to 1.

    It is 1 minus the margin between the two most probable classes. If each class is a decision of its own, it is the
    largest `1 - |2p - 1|`, of the class next to a probability of one half.

    Example:
    >>> float(uncertainty(np.array([0.5, 0.25, 0.25]), False)), float(uncertainty(np.array([0.0, 0.75]), True))
    (0.75, 0.5)
    """
    if independent:
        return float(1 - np.abs(2 * probabilities - 1).min())
    second, first = np.partition(probabilities, -2)[-2:]
    return float(1 - (first - second))


def parts(answer: np.ndarray, names: Sequence[str], kind: str = "probabilities", top_k: int = TOP_K) -> Parts:
    """Return the answer for one image, of `[k]` or `[H, W]`, as pairs of name and number.

    Of probabilities they are the `top_k` most probable classes, best first; of values all, in their order; of a mask
    its classes, with their shares of the pixels, the largest first.
    """
    if kind == "mask":
        answer = masks.shares(answer, len(names))
        top_k = int(np.count_nonzero(answer))
    if len(names) != len(answer):
        raise ValueError(
            f"Expected a name for each of the {len(answer)} {'values' if kind == 'values' else 'classes'}. Received: "
            f"{len(names)} names, in the model card of the artifact."
        )
    order = range(len(answer)) if kind == "values" else np.argsort(-answer, kind="stable")[:top_k]
    return [(names[index], float(answer[index])) for index in order]


def as_text(answer: Parts, kind: str = "probabilities") -> str:
    """Return an answer as lines of a table, one per class or value."""
    numbers = [as_number(number) if kind == "values" else percent(number) for _, number in answer]
    name_width, width = max(len(name) for name, _ in answer), max(map(len, numbers))
    pairs = zip(answer, numbers, strict=True)
    return "".join(f"  {name:<{name_width}}  {number:>{width}}\n" for (name, _), number in pairs)


def as_number(value: float) -> str:
    """Return a number with five significant digits, and its whole part in full: 1953.4, 128250, 0.031250."""
    return f"{value:.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:.5g}"


def as_json(answer: Parts, kind: str = "probabilities") -> dict[str, Any]:
    """Return an answer as an entry for JSON."""
    if kind == "values":  # the shortest decimal number of each float32
        return {"values": {name: float(str(np.float32(number))) for name, number in answer}}
    if kind == "mask":
        return {"classes": [{"label": label, "share": share} for label, share in answer]}
    return {"predictions": [{"label": label, "probability": probability} for label, probability in answer]}
