"""Export to TFLite files, which are verified before they are published."""

import dataclasses
import pathlib
import tempfile
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data import preprocess as preprocessing
from keras_vit.exporting import quantization, signatures, tflite_values, verify
from keras_vit.exporting.inference_model import inference_model, reference
from keras_vit.exporting.verified_file import ConversionError, write_verified
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.sample_images import SampleImages
from keras_vit.inference.tflite import FEATURES, without_deprecation
from keras_vit.util.progress import Progress
from keras_vit.util.values import Values

WITH_FEATURES = ("float32", "float16", "dynamic_int8")  # precisions that support features


def write(
    model: keras.Model,
    path: str,
    *,
    card: ModelCard,
    images: SampleImages,
    precision: str = "float32",
    batch_size: int = 1,
    input_dtype: str = "float32",
    calibration: SampleImages | None = None,
    tolerance: verify.Tolerance | None = None,
    features: bool = False,
) -> tuple[str, verify.Comparison]:
    """Export a predictor to a TFLite file. See `export`.

    The model card (`PATH.json`) is written next to the file. The signature `classify` takes `images` and returns
    `probabilities`. If a model has another output, the signature has the name of the output.

    Args:
        model: The trained model, under any precision.
        path: The `.tflite` file to write.
        card: Model card of the model.
        images: Real images to verify with.
        precision: One of `formats.TFLITE.precisions`.
        batch_size: Number of images per call. The number is fixed in the file, because accelerators need static shapes.
        input_dtype: `"float32"` for preprocessed images, or `"uint8"` for pixels in the model's image size, which the
            file normalizes.
        calibration: Real training images, required for precisions with integer activations.
        tolerance: Limits of the verification; None for the limits of the precision.
        features: Whether to add a second signature, `features`, which returns the input of the head.
    """
    quantization.check(precision, calibration)
    if features and precision not in WITH_FEATURES:
        raise ValueError(
            f"features=True supports precision in {', '.join(WITH_FEATURES)}. Received: precision={precision!r}."
        )
    normalize, card_of_model = None, card
    if input_dtype == "uint8":
        # The application decodes and resizes the image; the file normalizes it.
        normalize = preprocessing.device_function(card.preprocess)
        card = dataclasses.replace(card, preprocess=preprocessing.split(card.preprocess)[0] or "decode")
    elif input_dtype != "float32":
        raise ValueError(f"input_dtype must be 'float32' or 'uint8'. Received: input_dtype={input_dtype!r}.")
    card = dataclasses.replace(card, precision=precision, batch_size=batch_size, input_dtype=input_dtype)
    copy = inference_model(model, "float32", **quantization.model_arguments(model, precision))
    if any(weight.dtype in ("int8", "uint8") for weight in copy.weights):
        raise ConversionError(
            "TFLite has no operators for layers that Keras quantized. Export the model as it was before `quantize`, "
            "with precision='dynamic_int8'."
        )
    calibration_images = None if calibration is None else card.prepare(calibration.contents)
    with Progress("Converting to TFLite"):
        content = convert(copy, card, normalize, calibration_images, features)
    write_content = lambda name: pathlib.Path(name).write_bytes(content)  # noqa: E731
    return write_verified(path, card, write_content, reference(model, copy, card_of_model), images, tolerance)


def convert(
    model: keras.Model,
    card: ModelCard,
    normalize: Callable | None = None,
    calibration_images: np.ndarray | None = None,
    features: bool = False,
) -> bytes:
    """Convert a float32 model to a TFLite file of the card's precision, with built-in operators only."""
    module = tf.Module()
    module.model_variables = [variable.value for variable in model.variables]
    spec = tf.TensorSpec(
        (card.batch_size or 1, *card.image_shape), tf.float32 if normalize is None else tf.uint8, "images"
    )
    normalize = normalize or (lambda images: images)
    signature = card.kind.signature
    in_graph = dataclasses.replace(card, output="scores") if card.kind.has_values else card

    def predictions(images):
        return {card.output_name: in_graph.predictions(model(normalize(images), training=False))}

    methods = {signature: predictions}
    if features:
        body = signatures.features_function(model)
        methods[FEATURES] = lambda images: {"features": body(normalize(images))}
    functions = signatures.trace({name: (method, spec) for name, method in methods.items()})
    with tempfile.TemporaryDirectory() as folder:
        # The converter keeps the names of a signature only if it reads a SavedModel.
        signatures.write(module, folder, functions)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(functions))
        try:
            with without_deprecation():  # the converter calibrates with TensorFlow's deprecated interpreter
                content = quantization.convert(converter, card.precision, spec, signature, calibration_images)
        except Exception as error:  # the converter's own exception is not public, and its passes may raise others
            raise ConversionError(f"The model cannot be converted to TFLite ({card.precision}): {error}") from error
    if card.kind.has_values:
        content = tflite_values.append(content, signature, Values.from_dict(card.values))
    return content
