"""Export in one call, to any format."""

import os
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit import _checks, _io
from keras_vit.exporting import verify
from keras_vit.exporting.onnx_openvino import export_onnx_openvino
from keras_vit.exporting.saved_model import export_saved_model
from keras_vit.exporting.tflite import export_tflite
from keras_vit.inference import keras_model, sample_images

FORMATS = ("saved_model", "tflite", "onnx", "openvino")
_EXTENSIONS = {".tflite": "tflite", ".onnx": "onnx", ".xml": "openvino"}


def export(
    model: keras.Model | str | os.PathLike,
    path: str | os.PathLike,
    format: str | None = None,  # noqa: A002  as Keras calls it
    *,
    images: Sequence[str | bytes],
    preprocess: str | None = None,
    class_names: Sequence[str] | None = None,
    **options: Any,
) -> verify.Comparison:
    """Export a model, after checking that the artifact answers like the model.

    Args:
        model: A model of this package with its head, or whatever `keras_vit.inference.open_classifier` opens as one: a
            run directory, a `.keras` file or a checkpoint.
        path: The file to write, or the directory of the versions of a SavedModel.
        format: `"saved_model"`, `"tflite"`, `"onnx"` or `"openvino"`; None for that of the extension of `path`.
        images: Real images to verify with: contents of image files, file names, or patterns.
        preprocess: Preprocessing string, such as `"value_range(-1, 1)"`. Decoding and resizing are added where they are
            missing. None only for a run directory.
        class_names: Names of the classes; None for those of the run or checkpoint, or numbers.
        **options: Options of the format, such as `precision` and `batch_size`; see `export_saved_model`,
            `export_tflite` and `export_onnx_openvino`.

    Returns:
        The comparison of the artifact with the model.

    Raises:
        ValueError: If an argument is wrong.
        ConversionError: If the format does not support the model.
        VerificationError: If the artifact answers differently; nothing is written then.

    Example:
    >>> comparison = export("runs/digits", "digits.tflite", images=["images/*.png"])
    >>> comparison.examples, comparison.top1_agreement
    (1, 1.0)
    """
    path = os.fspath(path)
    format = format or _EXTENSIONS.get(os.path.splitext(path)[1], "saved_model")  # noqa: A001
    _checks.choice("format", format, FORMATS)
    if isinstance(model, keras.Model):
        card = keras_model.card_of_model(model, model.name, preprocess, class_names or ())
    else:
        classifier = keras_model.open_model(os.fspath(model), preprocess, class_names)
        model, card = classifier.model, classifier.card
    contents = [image for image in images if isinstance(image, bytes)]
    files = _io.find_files([image for image in images if not isinstance(image, bytes)])
    found = sample_images.from_files(files) if files else sample_images.SampleImages([], None, [])
    names = [*(f"image {index}" for index in range(len(contents))), *found.names]
    examples = sample_images.SampleImages([*contents, *found.contents], None, names)
    examples = sample_images.keep_readable(examples, card.preprocess_function(), "error")
    if format == "saved_model":
        return export_saved_model(model, path, card=card, images=examples, **options)[1]
    if format == "tflite":
        return export_tflite(model, path, card=card, images=examples, **options)
    return export_onnx_openvino(model, path, format, card=card, images=examples, **options)
