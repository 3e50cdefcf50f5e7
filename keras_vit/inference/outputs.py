"""Outputs of a model: their names, the conversion of raw outputs to predictions, and the display of predictions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.inference import masks
from keras_vit.util.formatting import percent
from keras_vit.util.values import Values

TOP_K = 5
CLASSIFICATION = ("softmax", "sigmoid")
# `output` of a model card -> name of the artifact's output.
NAMES = {
    **dict.fromkeys(CLASSIFICATION, "probabilities"),
    "values": "values",
    "scores": "scores",  # "scores" and "features" are raw outputs
    "features": "features",
    "mask": "mask",
}
# Outputs whose entries have names -> output of a signature that contains the names.
NAMED = {"values": "value_names", "mask": "class_names"}

Parts = Sequence[tuple[str, float]]


def to_answers(
    raw: Any, output: str, values: Mapping[str, Any] | None = None, size: tuple[int, int] | None = None
) -> Any:
    """Convert raw outputs of any float dtype to predictions.

    Args:
        raw: Logits, standardized values, scores or features, `[B, k]` or `[B, h, w, k]`.
        output: A key of `NAMES`. `"softmax"` and `"sigmoid"` give probabilities, `"values"` gives numbers in the unit
            of the data, `"scores"` and `"features"` give `raw`. `"mask"` gives the class of each pixel, `[B, H, W]`,
            from the bilinearly resized logits.
        values: Names and standardization of values, `Values.to_dict()`.
        size: `(H, W)` of masks.

    Returns:
        A tensor of Keras' backend: integers for masks, float32 otherwise.
    """
    if output not in NAMES:
        raise ValueError(f"output must be one of {tuple(NAMES)}. Received: output={output!r}.")
    import keras  # imports Keras' backend, which artifacts do not need

    raw = keras.ops.cast(raw, "float32")
    if output == "values":
        return Values.from_dict(values or {}).restore(raw)
    if output == "mask":
        from keras_vit.models.dense_heads import resized

        assert size is not None  # always set for masks
        # Keras' argmax uses bit operations, which no converter supports.
        best = keras.ops.top_k(resized(raw, size), 1)[1][..., 0]
        return keras.ops.cast(best, masks.dtype(raw.shape[-1]))
    return getattr(keras.ops, output)(raw) if output in CLASSIFICATION else raw


def is_correct(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return for each image whether its predicted class `[N]` is its label `[N]`, or one of its multi-hot labels."""
    if np.ndim(labels) == 2:
        return np.asarray(labels)[np.arange(len(predicted)), predicted] > 0
    return predicted == np.asarray(labels)


def uncertainty(probabilities: np.ndarray, independent: bool) -> float:
    """Return the uncertainty of probabilities `[k]`, from 0 to 1.

    The uncertainty is 1 minus the margin between the two most probable classes. For independent classes, the
    uncertainty is the maximum of `1 - |2p - 1|`, which belongs to the class whose probability is closest to 0.5.

    Example:
    >>> float(uncertainty(np.array([0.5, 0.25, 0.25]), False)), float(uncertainty(np.array([0.0, 0.75]), True))
    (0.75, 0.5)
    """
    if independent:
        return float(1 - np.abs(2 * probabilities - 1).min())
    second, first = np.partition(probabilities, -2)[-2:]
    return float(1 - (first - second))


def parts(answer: np.ndarray, names: Sequence[str], kind: str = "probabilities", top_k: int = TOP_K) -> Parts:
    """Return the prediction for one image, `[k]` or `[H, W]`, as pairs of name and number.

    - Probabilities: the `top_k` most probable classes, in descending order.
    - Values: all values, in their order.
    - Mask: the classes in the mask and their shares of the pixels, in descending order.
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
    """Return a prediction as a text table with one line per class or value."""
    numbers = [as_number(number) if kind == "values" else percent(number) for _, number in answer]
    name_width, width = max(len(name) for name, _ in answer), max(map(len, numbers))
    pairs = zip(answer, numbers, strict=True)
    return "".join(f"  {name:<{name_width}}  {number:>{width}}\n" for (name, _), number in pairs)


def as_number(value: float) -> str:
    """Format a number with five significant digits, but never round its integer part: 1953.4, 128250, 0.031250."""
    return f"{value:.0f}" if 99_999.5 <= abs(value) < 1e15 else f"{value:.5g}"


def shortest(number: float) -> float:
    """Return the float64 with the shortest decimal representation of a float32."""
    return float(str(np.float32(number)))


def as_json(answer: Parts, kind: str = "probabilities") -> dict[str, Any]:
    """Return a prediction as a JSON object."""
    if kind == "values":
        return {"values": {name: shortest(number) for name, number in answer}}
    if kind == "mask":
        return {"classes": [{"label": label, "share": share} for label, share in answer]}
    return {"predictions": [{"label": label, "probability": probability} for label, probability in answer]}
