"""From logits to probabilities, and from probabilities to the names of the most probable classes."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

TOP_K = 5


def to_probabilities(logits: tf.Tensor, output: str) -> tf.Tensor:
    """Convert logits to float32 probabilities.

    Args:
        logits: `[B, classes]`, of any float type.
        output: `"softmax"` or `"sigmoid"`, as the model was trained.

    Raises:
        ValueError: If `output` is neither.
    """
    logits = tf.cast(logits, tf.float32)
    if output == "softmax":
        return tf.nn.softmax(logits)
    if output == "sigmoid":
        return tf.sigmoid(logits)
    raise ValueError(f"output must be 'softmax' or 'sigmoid'. Received: output={output!r}.")


def top_labels(probabilities: np.ndarray, class_names: Sequence[str], top_k: int = TOP_K) -> list[tuple[str, float]]:
    """Return the most probable classes of one image with their probabilities, best first.

    Args:
        probabilities: `[classes]`.
        class_names: One name for each class.
        top_k: Number of classes to return.
    """
    order = np.argsort(-probabilities, kind="stable")[:top_k]
    return [(class_names[index], float(probabilities[index])) for index in order]


def check_class_names(class_names: Sequence[object] | None, num_classes: int) -> tuple[str, ...]:
    """Return class names as strings; numbers if there are none.

    Args:
        class_names: One name for each class, or None.
        num_classes: Number of classes of the model.

    Raises:
        ValueError: If the number of names is not the model's number of classes.
    """
    names = tuple(map(str, class_names or range(num_classes)))
    if len(names) != num_classes:
        raise ValueError(
            f"class_names must hold one name for each of the {num_classes} classes. Received: {len(names)}."
        )
    return names
