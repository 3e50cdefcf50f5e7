"""From logits to probabilities, and from probabilities to the names of the most probable classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

TOP_K = 5
CLASSIFICATION = ("softmax", "sigmoid")
OUTPUTS = (*CLASSIFICATION, "scores", "features")  # the last two: the outputs of a model as they are


def name_of(output: str) -> str:
    """Return the name of an artifact's output: `probabilities`, `scores` or `features`."""
    return "probabilities" if output in CLASSIFICATION else output


def to_probabilities(logits: Any, output: str) -> Any:
    """Convert logits `[B, classes]` of any float type to float32 probabilities, a tensor of Keras' backend.

    `output` is one of `OUTPUTS`: `"softmax"` or `"sigmoid"`, as the model was trained. Scores and features stay as they
    are.
    """
    import keras  # with its backend, which probabilities of files do without

    logits = keras.ops.cast(logits, "float32")
    if output == "softmax":
        return keras.ops.softmax(logits)
    if output == "sigmoid":
        return keras.ops.sigmoid(logits)
    if output in OUTPUTS:
        return logits
    raise ValueError(f"output must be one of {OUTPUTS}. Received: output={output!r}.")


def is_correct(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return for each image whether its predicted class, of `[N]`, is its label `[N]` or in its multi-hot row."""
    if np.ndim(labels) == 2:
        return np.asarray(labels)[np.arange(len(predicted)), predicted] > 0
    return predicted == np.asarray(labels)


def top_labels(probabilities: np.ndarray, class_names: Sequence[str], top_k: int = TOP_K) -> list[tuple[str, float]]:
    """Return the `top_k` most probable classes of one image, of `[classes]`, with their probabilities, best first."""
    if len(class_names) != len(probabilities):
        raise ValueError(
            f"Expected a name for each of the {len(probabilities)} classes. Received: {len(class_names)} names, in the "
            "model card of the artifact."
        )
    order = np.argsort(-probabilities, kind="stable")[:top_k]
    return [(class_names[index], float(probabilities[index])) for index in order]
