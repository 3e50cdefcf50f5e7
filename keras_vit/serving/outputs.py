"""What an artefact answers: probabilities, and the names of the likeliest classes."""

import numpy as np
import tensorflow as tf

TOP_K = 5


def to_probabilities(logits: tf.Tensor, output: str) -> tf.Tensor:
    """Logits to float32 probabilities, as the model was trained.

    Args:
        logits: `[B, classes]`, any float dtype.
        output: "softmax" or "sigmoid".

    Raises:
        ValueError: If `output` is neither.
    """
    logits = tf.cast(logits, tf.float32)
    if output == "softmax":
        return tf.nn.softmax(logits)
    if output == "sigmoid":
        return tf.sigmoid(logits)
    raise ValueError(f"output must be 'softmax' or 'sigmoid'. Received: output={output!r}.")


def describe(probabilities: tf.Tensor, class_names: tuple[str, ...], top_k: int = TOP_K) -> dict[str, tf.Tensor]:
    """The outputs of every signature.

    Args:
        probabilities: `[B, classes]`.
        class_names: One label for each class.
        top_k: How many labels to return, at most `classes`.

    Returns:
        `probabilities` `[B, classes]`, `top_k_classes` (strings) and `top_k_scores`, both `[B, k]`, best first.
    """
    scores, indices = tf.math.top_k(probabilities, min(top_k, len(class_names)))  # [B, k]
    with tf.device("/cpu:0"):  # strings
        labels = tf.gather(tf.constant(list(class_names), tf.string), indices)  # [B, k]
    return {"probabilities": probabilities, "top_k_classes": labels, "top_k_scores": scores}


def top_labels(probabilities: np.ndarray, class_names: tuple[str, ...], top_k: int = TOP_K) -> list[tuple[str, float]]:
    """The likeliest classes of one picture with their probabilities, best first.

    Args:
        probabilities: `[classes]`.
        class_names: One label for each class.
        top_k: How many to return.
    """
    order = np.argsort(-probabilities, kind="stable")[:top_k]
    return [(class_names[index], float(probabilities[index])) for index in order]


def check_class_names(class_names, num_classes: int) -> tuple[str, ...]:
    """Class names as strings, numbers where there are none.

    Raises:
        ValueError: If their number is not the model's.
    """
    names = tuple(map(str, class_names or range(num_classes)))
    if len(names) != num_classes:
        raise ValueError(
            f"class_names must hold one name for each of the {num_classes} classes. Received: {len(names)}."
        )
    return names
