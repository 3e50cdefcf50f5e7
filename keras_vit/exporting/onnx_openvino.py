"""Export to ONNX and OpenVINO files with Keras' exporters. The files are verified before they are published."""

import contextlib
import dataclasses
import gc
import os
import threading
from collections.abc import Iterator

import keras
import tensorflow as tf
from absl import logging

from keras_vit.exporting import verify
from keras_vit.exporting.inference_model import inference_model, reference
from keras_vit.exporting.verified_file import ConversionError, write_verified
from keras_vit.inference import formats, openvino
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.onnx import INPUT
from keras_vit.inference.sample_images import SampleImages
from keras_vit.layers import kernels
from keras_vit.models.onnx_erfc import register_erfc
from keras_vit.util import checks
from keras_vit.util.progress import Progress

_LARGEST_GRAPH = 2**31  # bytes of a TensorFlow graph or an ONNX file, with the weights; a limit of Protocol Buffers


def write(
    model: keras.Model,
    path: str,
    *,
    card: ModelCard,
    images: SampleImages,
    precision: str = "float32",
    batch_size: int | None = None,
    tolerance: verify.Tolerance | None = None,
) -> tuple[str, verify.Comparison]:
    """Export a predictor to ONNX or OpenVINO. See `export`.

    The model card (`PATH.json`) and OpenVINO's weights (`NAME.bin`) are written next to the file. The input is called
    `images`, and the output has the name in the card, such as `probabilities`; both are float32. With
    `batch_size=None`, the file accepts any batch size. `precision` is one of the format's `precisions`. A
    `mixed_bfloat16` file stores float32 weights; its card makes the runtime compute in bfloat16.
    """
    format = _prepare(path)  # noqa: A001  as Keras calls it
    checks.choice("precision", precision, formats.FORMATS[format].precisions)
    copy = inference_model(model, "float32")
    size = 4 * copy.count_params()
    if format == "onnx" and size >= _LARGEST_GRAPH:
        raise ConversionError(
            f"An ONNX file can have at most 2 GiB. Received: a model with {size / 2**30:.2f} GiB of float32 weights. "
            "Export a SavedModel, a .tflite file or an .xml file for OpenVINO."
        )
    exported = with_answers(copy, card, batch_size)
    spec = tf.TensorSpec(exported.input_shape, tf.float32, INPUT)
    card = dataclasses.replace(card, precision=precision, batch_size=batch_size, input_dtype="float32")

    def convert(name: str) -> None:
        verbosity = logging.get_verbosity()
        try:
            with Progress(f"Converting to {format}"), _garbage_collected(), kernels.plain():
                exported.export(name, format=format, verbose=False, input_signature=[spec])
        except Exception as error:  # each converter has its own exceptions
            raise ConversionError(f"The model cannot be converted to {format}: {error}") from error
        finally:
            logging.set_verbosity(verbosity)  # Keras logs the names of temporary files

    return write_verified(path, card, convert, reference(model, copy, card), images, tolerance)


def _prepare(path: str) -> str:
    """Return the format of a file, after importing and patching its converter."""
    format = formats.EXTENSIONS[os.path.splitext(path)[1]]  # noqa: A001
    format.require_packages()
    if format.name == "openvino":
        openvino.import_openvino()
    else:
        register_erfc()
    return format.name


def with_answers(model: keras.Model, card: ModelCard, batch_size: int | None = None) -> keras.Model:
    """Return a model that maps `images` to predictions. The output has the name in the card."""
    images = keras.Input(card.image_shape, batch_size, dtype="float32", name=INPUT)
    predictions = card.predictions(model(images, training=False))
    return keras.Model(images, {card.output_name: predictions}, name="predictor")


@contextlib.contextmanager
def _garbage_collected(seconds: float = 1.0) -> Iterator[None]:
    """Collect garbage regularly inside the block.

    tf2onnx copies the whole model in each of its passes. The copies are a few large objects in reference cycles. By
    default, Python would collect the copies only after they take forty times the memory of the model.
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
