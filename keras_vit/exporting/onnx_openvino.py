"""ONNX and OpenVINO files, written by Keras' own exporters and verified before they are published."""

import contextlib
import dataclasses
import gc
import importlib.util
import threading
from collections.abc import Iterator

import keras
import tensorflow as tf
from absl import logging

from keras_vit.exporting import artifact_check, single_file, verify
from keras_vit.exporting.inference_model import inference_model
from keras_vit.inference import openvino, probabilities
from keras_vit.inference.keras_model import KerasClassifier
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.onnx import INPUT
from keras_vit.inference.opening import open_artifact
from keras_vit.inference.sample_images import SampleImages
from keras_vit.layers import kernels
from keras_vit.models.onnx_erfc import register_erfc

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
    classifier = with_output(copy, card.image_shape, card.output, batch_size)
    spec = tf.TensorSpec(classifier.input_shape, tf.float32, INPUT)
    card = dataclasses.replace(card, precision="float32", batch_size=batch_size, input="float32")
    with single_file.draft(path, card) as (name, describe):
        verbosity = logging.get_verbosity()
        try:
            with _garbage_collected(), kernels.plain():
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
        result = artifact_check.check(
            artifact, KerasClassifier(copy, card), images, tolerance or verify.tolerance_of("float32", card.output)
        )
        comparison = artifact_check.require(result, f"The {format} file")
        del artifact  # on some systems an open file cannot be moved
    return comparison


def check(format: str, path: str) -> None:  # noqa: A002
    """Refuse an unknown format, a file name that does not fit, or missing packages."""
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
        register_erfc()


def with_output(
    model: keras.Model, image_shape: tuple[int, int, int], output: str, batch_size: int | None = None
) -> keras.Model:
    """Return a model with one input, `images`, and one output, `probabilities`, `scores` or `features`."""
    images = keras.Input(image_shape, batch_size, dtype="float32", name=INPUT)
    logits = model(images, training=False)
    name = probabilities.name_of(output)
    activation = output if output in probabilities.CLASSIFICATION else "linear"
    outputs = keras.layers.Activation(activation, dtype="float32", name=name)(logits)
    return keras.Model(images, {name: outputs}, name="classifier")


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
