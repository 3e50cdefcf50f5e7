"""TFLite files: converted, checked for foreign operators, verified, and only then put in place."""

import collections
import contextlib
import functools
import os
import tempfile

import keras
import numpy as np
import tensorflow as tf

from keras_vit.serving import (
    artefacts,
    blame,
    clone,
    files,
    interpreter,
    metadata,
    outputs,
    pictures,
    quantization,
    representations,
    signatures,
    verify,
)
from keras_vit.serving.files import ConversionError as ConversionError

# Precisions that features may be had in, with the largest error of them, relative to their length: float32 sums in
# another order; 11 bits of each weight; 8 bits of each weight and of what enters the matrix products.
FEATURE_TOLERANCES = {"float32": 1e-3, "float16": 1e-2, "dynamic_int8": 0.1}


def export_tflite(
    model: keras.Model,
    path: str,
    *,
    preprocess,
    description: dict,
    examples: pictures.Pictures,
    precision: str = "float32",
    batch_size: int = 1,
    normalise=None,
    calibration: pictures.Pictures | None = None,
    tolerance: verify.Tolerance | None = None,
    features: bool = False,
) -> verify.Comparison:
    """Exports a classifier for devices, after checking that it answers as the model does.

    Beside the file lie its card (`PATH.json`) and its labels (`PATH.labels.txt`). The signature `classify` takes
    `images` and returns `probabilities`.

    Args:
        model: The trained model, under any precision.
        path: The `.tflite` file to write.
        preprocess: Encoded picture (scalar string) -> what the artefact takes, `[H, W, C]`.
        description: The card (`card.make`), of which `preprocess` is the string.
        examples: Real pictures to verify with.
        precision: A key of `quantization.PRECISIONS`.
        batch_size: Pictures in one call; it is part of the file, because accelerators refuse open shapes.
        normalise: For artefacts that take uint8 pixels: from them, `[B, H, W, C]`, to the model's input. None for an
            artefact that takes the model's float32 input.
        calibration: Real training pictures, for precisions whose activations are integers.
        tolerance: What the verification must keep to; None for the precision's own (`verify.TOLERANCES`).
        features: Whether a second signature, `features`, returns what the head reads. It shares the weights.

    Returns:
        The comparison with the model.

    Raises:
        ValueError: If the precision is unknown, lacks its calibration pictures, or does not go with `features`.
        ConversionError: If the artefact would need operators that are not built into TFLite.
        VerificationError: If it answers differently; nothing is written then.
    """
    quantization.check(precision, calibration)
    if features and precision not in FEATURE_TOLERANCES:
        raise ValueError(
            f"Features can be had in the precisions {', '.join(FEATURE_TOLERANCES)}. Received: {precision!r}."
        )
    network = clone.inference_clone(model, "float32", **quantization.model_arguments(model, precision))
    image_shape = tuple(description["image_shape"])
    calibration_images = None if calibration is None else pictures.prepare(calibration.contents, preprocess)
    options = (network, image_shape, description["output"])
    content = convert(*options, precision, batch_size, normalise, calibration_images, features)
    description = {**description, "precision": precision, "batch_size": batch_size}
    description["input"] = "float32" if normalise is None else "uint8"
    content = metadata.add(content, description)
    with files.draft(path, description) as (name, describe):
        with open(name, "wb") as file:
            file.write(content)
        describe()
        try:
            artefact = artefacts.TFLiteArtefact(name)
            comparison = files.compare(artefact, network, preprocess, examples, normalise)
        except RuntimeError as error:  # how the interpreter refuses
            raise ConversionError(f"The interpreter cannot run the {precision} file: {error}") from error
        try:
            verify.check(comparison, tolerance or verify.tolerance_of(precision), f"The {precision} TFLite file")
        except verify.VerificationError as error:
            if precision not in quantization.INTEGER:
                raise
            plain = os.path.join(os.path.dirname(name), "float32.tflite")
            with open(plain, "wb") as file:
                file.write(convert(*options, "float32", batch_size, normalise))
            images = pictures.prepare(examples.contents[:8], preprocess)
            worst = ", ".join(
                f"{layer} (+{growth:.1%})" for layer, growth in blame.block_errors(plain, name, images)[:3]
            )
            message = f"{error} The layers that add most to the error: {worst}."
            raise verify.VerificationError(message, error.comparison) from error
        if features:
            _check_features(artefact, network, pictures.prepare(examples.contents[:16], preprocess), normalise)
    return comparison


def convert(
    network: keras.Model,
    image_shape: tuple[int, int, int],
    output: str,
    precision: str = "float32",
    batch_size: int = 1,
    normalise=None,
    calibration_images: np.ndarray | None = None,
    features: bool = False,
) -> bytes:
    """Converts a float32 model to a TFLite file with built-in operators only.

    Args:
        network: A float32 model that returns logits.
        image_shape: `(H, W, C)` of its input.
        output: "softmax" or "sigmoid".
        precision: A key of `quantization.PRECISIONS`.
        batch_size: Pictures in one call.
        normalise: See `export_tflite`.
        calibration_images: What the artefact will take, `[N, H, W, C]`.
        features: See `export_tflite`.

    Returns:
        The content of the file.

    Raises:
        ConversionError: If there is an operator that is not built in.
    """
    with _graph(network, image_shape, output, batch_size, normalise, features) as (make_converter, spec):
        try:
            with interpreter.without_deprecation():  # the converter calibrates with TensorFlow's own
                content = quantization.convert(make_converter, precision, spec, artefacts.CLASSIFY, calibration_images)
        except Exception as error:  # the converter raises its own error, unexported, or whatever its passes raise
            raise ConversionError(f"The model cannot be converted to TFLite ({precision}): {error}") from error
    foreign = foreign_operators(content)
    if foreign:
        raise ConversionError(f"The artefact must hold built-in operators only. It also needs {foreign}.")
    return content


@contextlib.contextmanager
def _graph(network, image_shape, output, batch_size, normalise, features):
    """The graph to convert, as a function that makes converters for it, and its input."""
    module = tf.Module()
    module.model_variables = [variable.value for variable in network.variables]
    spec = tf.TensorSpec((batch_size, *image_shape), tf.float32 if normalise is None else tf.uint8, "images")
    normalise = normalise or (lambda images: images)

    def classify(images):
        return {"probabilities": outputs.to_probabilities(network(normalise(images), training=False), output)}

    methods = {artefacts.CLASSIFY: classify}
    if features:
        body = representations.features_function(network)
        methods[artefacts.FEATURES] = lambda images: {"features": body(normalise(images))}
    functions = {
        name: tf.function(method, autograph=False).get_concrete_function(spec) for name, method in methods.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        # By way of a SavedModel: the other ways in lose the names of the signature.
        signatures.write(module, folder, functions)
        yield functools.partial(tf.lite.TFLiteConverter.from_saved_model, folder, signature_keys=list(functions)), spec


def _check_features(artefact, network, images, normalise):
    """The features of real pictures must be those of the model, to what the precision rounds."""
    expected = representations.features_function(network)(
        tf.constant(images if normalise is None else normalise(images))
    )
    expected = expected.numpy()
    error = float(np.linalg.norm(artefact.predict_features(images) - expected) / max(np.linalg.norm(expected), 1e-6))
    limit = FEATURE_TOLERANCES[artefact.card["precision"]]
    if not error <= limit:
        raise verify.VerificationError(
            f"The features differ from the model's by {error:.1e}, expected at most {limit}."
        )


def operators(content: bytes) -> collections.Counter:
    """Counts the operators of a TFLite file by name; custom and Flex ones have the prefix `CUSTOM:`."""
    from tensorflow.lite.python import schema_py_generated as schema

    root = schema.Model.GetRootAs(content, 0)
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    codes = []
    for index in range(root.OperatorCodesLength()):
        entry = root.OperatorCodes(index)
        # Codes below 127 are stored in the old, one-byte field.
        code = max(entry.BuiltinCode(), entry.DeprecatedBuiltinCode())
        custom = entry.CustomCode()
        codes.append(f"CUSTOM:{custom.decode()}" if custom else names[code])
    counts = collections.Counter()
    for index in range(root.SubgraphsLength()):
        graph = root.Subgraphs(index)
        counts.update(codes[graph.Operators(i).OpcodeIndex()] for i in range(graph.OperatorsLength()))
    return counts


def foreign_operators(content: bytes) -> list[str]:
    """The custom and Flex operators of a TFLite file, which a plain interpreter cannot run."""
    return sorted(name.removeprefix("CUSTOM:") for name in operators(content) if name.startswith("CUSTOM"))
