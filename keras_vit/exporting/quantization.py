"""Precisions of TFLite files, and the settings of the converter for each."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.inference import formats
from keras_vit.util import checks
from keras_vit.util.progress import track

CALIBRATED = ("int8", "int16x8")

# Operators that stay in float32 in an int8 file. Quantizing the two matrix products of attention costs the most
# accuracy: both operands are activations, with one range for all attention heads. Residual sums, norms, softmax and
# GELU have outliers, or a fixed output scale of 1/256, which is too coarse for attention weights over several
# hundred tokens.
FLOAT_OPERATORS = (
    "BATCH_MATMUL",
    "SOFTMAX",
    "GELU",
    "ADD",
    "MEAN",
    "SUB",
    "SQUARED_DIFFERENCE",
    "MUL",
    "RSQRT",
    "MAX_POOL_2D",
    # Group norm uses these operators to copy means from groups to channels; integers would round the means.
    "RESHAPE",
    "BROADCAST_TO",
)


def check(precision: str, calibration: object) -> None:
    """Raise an error for an unknown precision or missing calibration images."""
    checks.choice("precision", precision, formats.TFLITE.precisions)
    if precision in CALIBRATED and not calibration:
        raise ValueError(f"The precision {precision!r} needs real training images for calibration. Received: none.")


def model_arguments(model: keras.Model, precision: str) -> dict[str, Any]:
    """Return arguments that replace the model's for the converter and do not change its outputs."""
    # BiT pads with minus infinity before pooling, which no integer can represent.
    if precision in CALIBRATED and model.get_config().get("pool_padding") == "infinity":
        return {"pool_padding": "edge"}
    return {}


def convert(converter: Any, precision: str, spec: tf.TensorSpec, signature: str, images: Any = None) -> bytes:
    """Convert a graph to a TFLite file of a precision, with built-in operators only."""
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    converter.allow_custom_ops = False
    if precision != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision in CALIBRATED:
        converter.representative_dataset = lambda: ((signature, {spec.name: batch}) for batch in _batches(spec, images))
    if precision == "int8":  # only the quantization debugger can keep chosen operators in float
        debugger = tf.lite.experimental.QuantizationDebugger(
            converter=converter,
            debug_dataset=lambda: iter(()),  # not used
            debug_options=tf.lite.experimental.QuantizationDebugOptions(denylisted_ops=list(FLOAT_OPERATORS)),
        )
        return debugger.get_nondebug_quantized_model()
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if precision == "int16x8":
        integers = tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        converter.target_spec.supported_ops = [integers, tf.lite.OpsSet.TFLITE_BUILTINS]
    return converter.convert()


def _batches(spec: tf.TensorSpec, images: np.ndarray) -> Iterator[np.ndarray]:
    """Yield full batches of calibration images in the dtype of the input."""
    batch_size = spec.shape[0]
    for start in track(range(0, len(images), batch_size), "Calibrating", unit="batches"):
        yield images[np.arange(start, start + batch_size) % len(images)].astype(spec.dtype.as_numpy_dtype)
