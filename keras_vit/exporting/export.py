"""Export in one call, to any format."""

import dataclasses
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_vit import _checks, models
from keras_vit.exporting import verify
from keras_vit.exporting.inference_model import activation_of, check_model, last_operation
from keras_vit.exporting.onnx_openvino import export_onnx_openvino
from keras_vit.exporting.saved_model import export_saved_model
from keras_vit.exporting.tflite import export_tflite
from keras_vit.inference import image_forms, keras_model, sample_images
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.probabilities import CLASSIFICATION, check_class_names
from keras_vit.models.base import ConfiguredModel

FORMATS = ("saved_model", "tflite", "onnx", "openvino")
_EXTENSIONS = {".tflite": "tflite", ".onnx": "onnx", ".xml": "openvino"}


def export(
    model: keras.Model | str | os.PathLike,
    path: str | os.PathLike,
    format: str | None = None,  # noqa: A002  as Keras calls it
    *,
    images: Any,
    preprocess: str | None = None,
    class_names: Sequence[str] | None = None,
    **options: Any,
) -> verify.Comparison:
    """Export a model, after checking that the outputs of the artifact are the model's.

    The output of the artifact is called

    - `probabilities` for a model of this package with its head, for a model that ends in softmax or sigmoid, and for
      any model with `class_names` (by softmax, unless it ends in sigmoid);
    - `scores` for another model that ends in a dense layer: its outputs as they are;
    - `features` for other models, such as those with `include_top=False`.

    Args:
        model: A functional or sequential model with layers of this package, such as
            `keras.Model(base.input, keras.layers.Dense(3)(base.get_layer("pool").output))`, or whatever
            `keras_vit.inference.open_classifier` opens as one: a run directory, a `.keras` file or a checkpoint.
        path: The file to write, or the directory of the versions of a SavedModel.
        format: `"saved_model"`, `"tflite"`, `"onnx"` or `"openvino"`; None for that of the extension of `path`, which
            is a SavedModel for a path without extension.
        images: Real images to verify with: file names, patterns, contents of image files, or arrays of pixels from 0 to
            255, `[N, H, W, C]`.
        preprocess: Preprocessing string, such as `"value_range(-1, 1)"`. Decoding and resizing are added where they are
            missing. None for that of the run, or for the model's `input_normalization`.
        class_names: Names of the classes; None for those of the run or checkpoint, or numbers.
        **options: Options of the format, such as `precision` and `batch_size`; see `export_saved_model`,
            `export_tflite` and `export_onnx_openvino`.

    Returns:
        The comparison of the artifact with the model.

    Raises:
        TypeError: If an argument has another type, or is not an option of the format.
        ValueError: If an argument is wrong.
        ConversionError: If the format does not support the model.
        VerificationError: If the outputs of the artifact differ; nothing is written then.

    Example:
    >>> comparison = export("runs/digits", "digits.tflite", images="images/*.png")
    >>> comparison.examples, comparison.top1_agreement
    (1, 1.0)
    """
    if not isinstance(model, (keras.Model, str, os.PathLike)):
        check_model(model)
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"The order of the arguments is export(model, path). Received: path of type {type(path).__name__}."
        )
    path = os.fspath(path)
    format = _format_of(path, format)  # noqa: A001
    writers: dict[str, Callable] = {"saved_model": export_saved_model, "tflite": export_tflite}
    writer = writers.get(format, export_onnx_openvino)
    _check_options(writer, format, options)
    model, card = _open(model, preprocess, class_names)
    check_model(model)
    examples = sample_images.keep_readable(image_forms.of_any(images), card.preprocess_function(), "error")
    if format == "saved_model":
        return export_saved_model(model, path, card=card, images=examples, **options)[1]
    if format == "tflite":
        return export_tflite(model, path, card=card, images=examples, **options)
    return export_onnx_openvino(model, path, format, card=card, images=examples, **options)


def _format_of(path: str, format: str | None) -> str:  # noqa: A002
    """Return the format of a path, and refuse an extension of another one."""
    extension = os.path.splitext(path)[1]
    by_extension = _EXTENSIONS.get(extension)
    if format is None and by_extension is None and extension[1:].isalpha() and not os.path.isdir(path):
        raise ValueError(
            f"`path` must end in {', '.join(_EXTENSIONS)}, or be the directory of a SavedModel (of any name with "
            f"format='saved_model'). Received: path={path!r}."
        )
    chosen = by_extension or "saved_model" if format is None else _checks.choice("format", format, FORMATS)
    expected = next((name for name, known in _EXTENSIONS.items() if known == chosen), None)
    if (expected or by_extension) and chosen != by_extension:
        needed = f"must end in {expected}" if expected else "must be a directory"
        raise ValueError(f"`path` {needed} for format={chosen!r}. Received: path={path!r}.")
    return chosen


def _check_options(writer: Callable, format: str, options: dict[str, Any]) -> None:  # noqa: A002
    """Refuse options that a format does not have."""
    parameters = inspect.signature(writer).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("card", "images")]
    for name in options:
        if name not in known:
            raise TypeError(
                f"export() has no option {name!r} for format={format!r}.{_checks.nearest(name, known)} "
                f"Its options are: {', '.join(known)}."
            )


def _open(
    model: keras.Model | str | os.PathLike, preprocess: str | None, class_names: Sequence[str] | None
) -> tuple[keras.Model, ModelCard]:
    """Return a model and its description, with the kind of its output."""
    if isinstance(model, keras.Model):
        check_model(model)
        model = model.encoder() if isinstance(model, models.MaskedModel) else model
        card = keras_model.card_of_model(model, model.name, preprocess)
    else:
        classifier = keras_model.open_model(os.fspath(model), preprocess, class_names)
        model, card = classifier.model, classifier.card
        if card.recipe and card.class_names:  # a run, whose output is known
            return model, card
        check_model(model)
    names, count = class_names or getattr(model, "class_names", None) or (), model.outputs[0].shape[-1]
    last, has_our_head = model, False
    while isinstance(last, keras.Model):
        has_our_head = isinstance(last, ConfiguredModel) and bool(last.get_config().get("include_top"))
        last = last_operation(last)
    activation = activation_of(last)
    if activation in CLASSIFICATION:
        return model, dataclasses.replace(card, output=activation, class_names=check_class_names(names, count))
    if names or has_our_head:
        return model, dataclasses.replace(card, output="softmax", class_names=check_class_names(names, count))
    output = "scores" if isinstance(last, (keras.layers.Dense, keras.layers.EinsumDense)) else "features"
    return model, dataclasses.replace(card, output=output, class_names=())
