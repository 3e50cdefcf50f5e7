"""The precisions of TFLite files, and how the converter is told about them."""

import numpy as np
import tensorflow as tf

PRECISIONS = {
    "float32": "as the model",
    "float16": "weights stored in 16 bits, computed in float32; half the size",
    "dynamic_int8": "weights in 8 bits, activations quantised as they come; a quarter of the size",
}


def check(precision: str, calibration) -> None:
    """Refuses an unknown precision.

    Raises:
        ValueError: If the precision is unknown.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {sorted(PRECISIONS)}. Received: precision={precision!r}.")


def configure(converter, precision: str, spec: tf.TensorSpec, images: np.ndarray | None = None) -> None:
    """Sets a `tf.lite.TFLiteConverter` up for a precision, with built-in operators only.

    Args:
        converter: The converter to change.
        precision: A key of `PRECISIONS`.
        spec: The input of the graph.
        images: Calibration images.
    """
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    converter.allow_custom_ops = False
    if precision == "float32":
        return
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
