"""Export of a model to any format in one call."""

import importlib
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_vit import models
from keras_vit.exporting import verify
from keras_vit.exporting.inference_model import check_model
from keras_vit.inference import formats, open_predictor, sample_images
from keras_vit.inference.keras_card import card_of_model
from keras_vit.inference.keras_model import KerasPredictor
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.sample_images import SampleImages
from keras_vit.util import checks, file_io


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
    """Export a model and verify on real images that the outputs of the artifact match the model's.

    The name of the output depends on the model:

    - `probabilities`: models of this package with their head, models that end in softmax or sigmoid, and all models
      with `class_names`. Softmax turns logits into probabilities; sigmoid is used for a single logit.
    - `values`: models with `values`. The output is in the unit of the data.
    - `mask`: models with logits for each patch, `[B, h, w, classes]`, that were given their `head` or have
      `class_names`. The output is the class of each pixel.
    - `scores`: other models that end in a dense layer or were given a `head`. Their outputs are not changed.
    - `features`: all other models, such as models with `include_top=False`.

    Args:
        model: A functional or sequential model with layers of this package, such as
            `keras.Model(base.input, keras.layers.Dense(3)(base.get_layer("pool").output))`. The path of a run
            directory, a `.keras` file or a checkpoint is also accepted.
        path: File to write; for a SavedModel, the directory of its versions.
        format: Name in `keras_vit.inference.formats.FORMATS`, such as `"tflite"`. None uses the format of the extension
            of `path`, or a SavedModel if `path` has no extension.
        images: Real images to verify with: file names, patterns, contents of image files, or arrays of pixels from 0 to
            255, `[N, H, W, C]`.
        preprocess: Preprocessing string, such as `"value_range(-1, 1)"`. Missing decoding and resizing are added. None
            uses the preprocessing of the run, or the model's `input_normalization`.
        class_names: Names of the classes. None uses the names of the run or checkpoint, or numbers if it has none.
        **options: Options of the format: `precision` (one of the format's `precisions`, such as `"float16"`) and
            `tolerance`. For files: `batch_size`. For a SavedModel: `version`, `top_k`, `max_pixels`,
            `extra_signatures` and `warm_up`. For a TFLite file: `input_dtype`, `calibration` and `features`.

    Returns:
        The comparison of the artifact's outputs with the model's.

    Raises:
        TypeError: If an argument has the wrong type, or the format does not have an option.
        ValueError: If an argument has an invalid value.
        ConversionError: If the format does not support the model.
        VerificationError: If the outputs of the artifact differ from the model's. In this case nothing is written.

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
    writer = writer_of(path, format, options)
    model, card = _open(model, preprocess, class_names)
    check_model(model)
    examples = sample_images.keep_readable(sample_images.of_any(images), card.preprocess_function(), "error")
    return writer(model, path, card=card, images=examples, **options)[1]


def write(
    predictor: KerasPredictor,
    path: str,
    format: str | None,
    images: SampleImages,
    **options: Any,  # noqa: A002
) -> tuple[str, verify.Comparison]:
    """Export an open predictor; return the path of the artifact and the comparison."""
    writer = writer_of(path, format, options)
    return writer(predictor.model, path, card=predictor.card, images=images, **options)


def writer_of(path: str, format: str | None, options: dict[str, Any]) -> Callable:  # noqa: A002
    """Return the function that writes a format. Raise an error for an invalid path or option, or a missing package."""
    file_io.check_writable(path)
    chosen = format_of(path, format)
    chosen.require_packages()
    writer = importlib.import_module(f"keras_vit.exporting.{chosen.writer}").write
    parameters = inspect.signature(writer).parameters.values()
    checks.choice("precision", options.get("precision", "float32"), chosen.precisions)
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("card", "images")]
    for name in options:
        if name not in known:
            raise TypeError(
                f"export() has no option {name!r} for format={chosen.name!r}.{checks.nearest(name, known)} "
                f"Its options are: {', '.join(known)}."
            )
    return writer


def format_of(path: str, format: str | None = None) -> formats.Format:  # noqa: A002
    """Return the format of a path, or raise an error if its extension belongs to another format."""
    by_extension = formats.of_file(path)
    extension = os.path.splitext(path)[1]
    if format is None and by_extension is None and extension[1:].isalpha() and not os.path.isdir(path):
        raise ValueError(
            f"`path` must end in {', '.join(formats.EXTENSIONS)}, or be the directory of a SavedModel (of any name "
            f"with format='saved_model'). Received: path={path!r}."
        )
    if format is None:
        return by_extension or formats.SAVED_MODEL
    chosen = formats.FORMATS[checks.choice("format", format, list(formats.FORMATS))]
    if chosen is not (by_extension or formats.SAVED_MODEL):
        needed = f"must end in {chosen.extension}" if chosen.extension else "must be a directory"
        raise ValueError(f"`path` {needed} for format={format!r}. Received: path={path!r}.")
    return chosen


def _open(
    model: keras.Model | str | os.PathLike, preprocess: str | None, class_names: Sequence[str] | None
) -> tuple[keras.Model, ModelCard]:
    """Return a model and its model card."""
    if isinstance(model, keras.Model):
        check_model(model)
        model = model.encoder() if isinstance(model, models.MaskedModel) else model
        return model, card_of_model(model, model.name, preprocess, class_names or ())
    predictor = open_predictor(model, preprocess=preprocess, class_names=class_names)
    if not isinstance(predictor, KerasPredictor):
        raise ValueError(f"`model` must be a Keras model, a run, a `.keras` file or a checkpoint. Received: {model!r}.")
    return predictor.model, predictor.card
