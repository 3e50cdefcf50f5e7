"""ONNX and OpenVINO files, by Keras' own exporters: verified, and only then put in place."""

import contextlib
import functools
import gc
import importlib.util
import threading

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.serving import artefacts, clone, files, pictures, runtimes, verify

# format -> extension of the file, packages that Keras needs to write it beyond the runtime
FORMATS = {
    "onnx": (".onnx", ("tf2onnx", "onnx")),
    "openvino": (".xml", ()),
}


def export_interchange(
    model: keras.Model,
    path: str,
    format: str,  # noqa: A002  as Keras calls it
    *,
    preprocess,
    description: dict,
    examples: pictures.Pictures,
    batch_size: int | None = None,
    tolerance: verify.Tolerance | None = None,
) -> verify.Comparison:
    """Exports a classifier to ONNX or OpenVINO, after checking that it answers as the model does.

    Beside the file lie its card (`PATH.json`) and its labels (`PATH.labels.txt`), and for OpenVINO its weights
    (`NAME.bin`). Its input is `images`, its output `probabilities`.

    Args:
        model: The trained model, under any precision.
        path: The file to write, `.onnx` or `.xml`.
        format: "onnx" or "openvino".
        preprocess: Encoded picture (scalar string) -> what the model takes, `[H, W, C]`.
        description: The card (`card.make`), of which `preprocess` is the string.
        examples: Real pictures to verify with.
        batch_size: Pictures in one call; None leaves it open.
        tolerance: What the verification must keep to; None for that of float32.

    Returns:
        The comparison with the model.

    Raises:
        ImportError: If what writes or runs the format is not installed.
        ValueError: If the format is unknown, or the file name has another extension.
        ConversionError: If the model cannot be converted, or its file not be run.
        VerificationError: If it answers differently; nothing is written then.
    """
    check(format, path)
    network = clone.inference_clone(model, "float32")
    classifier = with_probabilities(network, tuple(description["image_shape"]), description["output"], batch_size)
    spec = tf.TensorSpec(classifier.input_shape, tf.float32, runtimes.INPUT)
    description = {**description, "precision": "float32", "batch_size": batch_size, "input": "float32"}
    with files.draft(path, description) as (name, describe):
        verbosity = logging.get_verbosity()
        try:
            with _garbage_collected():
                classifier.export(name, format=format, verbose=False, input_signature=[spec])
        except Exception as error:  # each converter raises its own
            raise files.ConversionError(f"The model cannot be converted to {format}: {error}") from error
        finally:
            logging.set_verbosity(verbosity)  # what Keras saves on the way talks of temporary files
        describe()
        try:
            artefact = artefacts.open_artefact(name)
        except ValueError as error:
            raise files.ConversionError(str(error)) from error
        comparison = files.compare(artefact, network, preprocess, examples)
        verify.check(comparison, tolerance or verify.tolerance_of("float32"), f"The {format} file")
        del artefact  # on some systems an open file cannot be moved
    return comparison


def check(format: str, path: str) -> None:  # noqa: A002
    """Refuses an unknown format, a file name that does not fit, or missing packages.

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
        runtimes.import_openvino()
    else:
        _teach_erfc()


def with_probabilities(
    network: keras.Model, image_shape: tuple[int, int, int], output: str, batch_size: int | None = None
) -> keras.Model:
    """A model with one input, `images`, and one output, `probabilities`.

    Args:
        network: A float32 model that returns logits.
        image_shape: `(H, W, C)`.
        output: "softmax" or "sigmoid".
        batch_size: Pictures in one call; None leaves it open.
    """
    images = keras.Input(image_shape, batch_size, dtype="float32", name=runtimes.INPUT)
    logits = network(images, training=False)
    probabilities = keras.layers.Activation(output, dtype="float32", name=runtimes.OUTPUT)(logits)
    return keras.Model(images, {runtimes.OUTPUT: probabilities}, name="classifier")


@contextlib.contextmanager
def _garbage_collected(seconds=1.0):
    """Frees what refers to itself every few moments, as long as the context lasts.

    tf2onnx copies the whole model for each of its passes, and its copies are such garbage, of few but large objects:
    left to itself Python lets them grow to forty times the size of the model before it looks for them.
    """
    finished = threading.Event()

    def collect():
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
def _teach_erfc():
    """Tells tf2onnx what the complementary error function is: TensorFlow's exact GELU has it, ONNX has not."""
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
