"""ONNX and OpenVINO files, written by Keras' own exporters and verified before they are published."""

import contextlib
import dataclasses
import functools
import gc
import importlib.util
import threading
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.exporting import single_file, verify
from keras_vit.exporting.inference_model import inference_model
from keras_vit.inference import openvino
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.onnx import INPUT, OUTPUT
from keras_vit.inference.opening import open_artifact
from keras_vit.inference.sample_images import SampleImages
from keras_vit.layers import kernels

# format -> extension of the file, packages that Keras needs to write it beyond the runtime
FORMATS = {
    "onnx": (".onnx", ("tf2onnx", "onnx")),
    "openvino": (".xml", ()),
}


def export_onnx_openvino(
    model: keras.Model,
    path: str,
    format: str,  # noqa: A002  as Keras calls it
    *,
    card: ModelCard,
    images: SampleImages,
    batch_size: int | None = None,
    tolerance: verify.Tolerance | None = None,
) -> verify.Comparison:
    """Export a classifier to ONNX or OpenVINO, after checking that it answers like the model.

    The card (`PATH.json`), the labels (`PATH.labels.txt`) and OpenVINO's weights (`NAME.bin`) are written beside the
    file. Its input is `images`, its output `probabilities`, both float32.

    Args:
        model: The trained model, under any precision.
        path: The file to write, `.onnx` or `.xml`.
        format: `"onnx"` or `"openvino"`.
        card: Description of the model.
        images: Real images to verify with.
        batch_size: Number of images per call; None leaves it open.
        tolerance: Largest differences that the verification allows; None for those of float32.

    Returns:
        The comparison with the model.

    Raises:
        ImportError: If a package that writes or runs the format is not installed.
        ValueError: If the format is unknown, or the file name has another extension.
        ConversionError: If the model cannot be converted, or its file cannot be run.
        VerificationError: If the file answers differently; nothing is written then.

    Example:
    >>> classifier = keras_vit.inference.open_classifier("runs/digits")
    >>> examples = keras_vit.inference.sample_images.from_files(["images/*.png"], limit=16)
    >>> comparison = export_onnx_openvino(  # doctest: +SKIP
    ...     classifier.model, "digits.onnx", "onnx", card=classifier.card, images=examples
    ... )
    """
    check(format, path)
    copy = inference_model(model, "float32")
    classifier = with_probabilities(copy, card.image_shape, card.output, batch_size)
    spec = tf.TensorSpec(classifier.input_shape, tf.float32, INPUT)
    card = dataclasses.replace(card, precision="float32", batch_size=batch_size, input="float32")
    with single_file.draft(path, card) as (name, describe):
        verbosity = logging.get_verbosity()
        try:
            with _garbage_collected(), kernels.mode("plain"):
                classifier.export(name, format=format, verbose=False, input_signature=[spec])
        except Exception as error:  # each converter raises its own
            raise single_file.ConversionError(f"The model cannot be converted to {format}: {error}") from error
        finally:
            logging.set_verbosity(verbosity)  # Keras logs the names of temporary files
        describe()
        try:
            artifact = open_artifact(name)
        except ValueError as error:
            raise single_file.ConversionError(str(error)) from error
        comparison = single_file.compare(artifact, copy, card.preprocess_function(), images)
        verify.check(comparison, tolerance or verify.tolerance_of("float32"), f"The {format} file")
        del artifact  # on some systems an open file cannot be moved
    return comparison


def check(format: str, path: str) -> None:  # noqa: A002
    """Refuse an unknown format, a file name that does not fit, or missing packages.

    Raises:
        ValueError: If the format or the file name is wrong.
        ImportError: If a package is missing.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {sorted(FORMATS)}. Received: format={format!r}.")
    extension, packages = FORMATS[format]
    if not path.endswith(extension):
        raise ValueError(f"The name of the {format} file must end in {extension}. Received: {path!r}.")
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        extra = f"keras-vision-transformers[{format}]"
        raise ImportError(f"Writing {format} files needs {', '.join(missing)}: pip install '{extra}'")
    if format == "openvino":
        openvino.import_openvino()
    else:
        _register_erfc()


def with_probabilities(
    model: keras.Model, image_shape: tuple[int, int, int], output: str, batch_size: int | None = None
) -> keras.Model:
    """Return a model with one input, `images`, and one output, `probabilities`.

    Args:
        model: A float32 model that returns logits.
        image_shape: `(H, W, C)`.
        output: `"softmax"` or `"sigmoid"`.
        batch_size: Number of images per call; None leaves it open.
    """
    images = keras.Input(image_shape, batch_size, dtype="float32", name=INPUT)
    logits = model(images, training=False)
    probabilities = keras.layers.Activation(output, dtype="float32", name=OUTPUT)(logits)
    return keras.Model(images, {OUTPUT: probabilities}, name="classifier")


@contextlib.contextmanager
def _garbage_collected(seconds: float = 1.0) -> Iterator[None]:
    """Collect garbage regularly inside the block.

    tf2onnx copies the whole model for each of its passes. The copies are few large objects in reference cycles: by
    default Python would let them grow to forty times the size of the model before it collects them.
    """
    finished = threading.Event()

    def collect() -> None:
        while not finished.wait(seconds):
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


@functools.cache
def _register_erfc() -> None:
    """Let tf2onnx convert the complementary error function of TensorFlow's exact GELU, which ONNX lacks."""
    from tf2onnx.handler import tf_op

    def erfc(graph, node, **_):
        shape, dtype = graph.get_shape(node.output[0]), graph.get_dtype(node.output[0])
        negative = graph.make_node("Neg", [node.input[0]]).output[0]
        erf = graph.make_node("Erf", [negative]).output[0]
        one = graph.make_const(f"{node.name}/one", np.ones((), np.float32)).output[0]
        graph.remove_node(node.name)
        # erfc(x) = 1 + erf(-x)
        graph.make_node("Add", [erf, one], name=node.name, outputs=node.output, dtypes=[dtype], shapes=[shape])

    tf_op("Erfc").register_compat_handler(erfc, 9)  # the first version of the operators that has Erf
