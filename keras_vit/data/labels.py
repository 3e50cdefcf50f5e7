"""Operations of preprocessing strings on labels."""

from collections.abc import Callable

import tensorflow as tf

from keras_vit import _checks
from keras_vit.data.parse import EXAMPLE, Op


def onehot(
    depth: int, key: str = "label", key_result: str | None = None, on: float = 1.0, off: float = 0.0
) -> Callable[[dict], dict]:
    """Turn class numbers into a float32 vector of length `depth`. Several labels are merged into one vector.

    Args:
        depth: Number of classes.
        key: Name of the label. `"labels"`, as big_vision calls it, means `"label"`.
        key_result: Name of the result. None replaces the label.
        on: Value of the classes of the label.
        off: Value of the other classes.
    """
    _checks.positive_int("depth", depth)

    def apply(example):
        label = example[_label_key(key)]
        if label.dtype.is_floating:  # already a vector
            return {**example, _label_key(key_result or key): label}
        vector = tf.one_hot(label, depth, on_value=on, off_value=off)
        if vector.shape.rank == 2:
            vector = tf.reduce_max(vector, axis=0) if on > off else tf.reduce_min(vector, axis=0)
        return {**example, _label_key(key_result or key): vector}

    return apply


def keep(*keys: str) -> Callable[[dict], dict]:
    """Drop all features except the named ones."""
    wanted = {_label_key(key) for key in keys}
    return lambda example: {key: value for key, value in example.items() if key in wanted}


def _label_key(key: str) -> str:
    return "label" if key == "labels" else key


OPS = {op.name: op for op in (Op("onehot", onehot, EXAMPLE), Op("keep", keep, EXAMPLE))}
