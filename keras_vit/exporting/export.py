"""Export in one call, to any format."""

import dataclasses
import importlib
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras

from keras_vit import _checks, _io, models
from keras_vit._progress import Progress
from keras_vit.exporting import verify
from keras_vit.exporting.inference_model import check_model
from keras_vit.inference import formats, keras_model, sample_images
from keras_vit.inference.keras_model import KerasPredictor, output_activation
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.sample_images import SampleImages
from keras_vit.models.base import ConfiguredModel, class_names_of
from keras_vit.models.representation import endings


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
      any model with `class_names`. Logits become probabilities by softmax, a single logit by sigmoid;
    - `values` for a model with `values`: numbers in the unit of the data;
    - `mask` for a model with logits for each patch, `[B, h, w, classes]`, by its `head` or with `class_names`: the
      class of each pixel;
    - `scores` for another model that ends in a dense layer or was given a `head`: its outputs as they are;
    - `features` for other models, such as those with `include_top=False`.

    Args:
        model: A functional or sequential model with layers of this package, such as
            `keras.Model(base.input, keras.layers.Dense(3)(base.get_layer("pool").output))`, or whatever
            `keras_vit.inference.open_predictor` opens as one: a run directory, a `.keras` file or a checkpoint.
        path: The file to write, or the directory of the versions of a SavedModel.
        format: `"saved_model"`, `"tflite"`, `"onnx"` or `"openvino"`; None for that of the extension of `path`, which
            is a SavedModel for a path without extension.
        images: Real images to verify with: file names, patterns, contents of image files, or arrays of pixels from 0 to
            255, `[N, H, W, C]`.
        preprocess: Preprocessing string, such as `"value_range(-1, 1)"`. Decoding and resizing are added where they are
            missing. None for that of the run, or for the model's `input_normalization`.
        class_names: Names of the classes; None for those of the run or checkpoint, or numbers.
        **options: Options of the format: `precision` (SavedModel: `"float32"`, `"bfloat16"`, `"float16"`; TFLite:
            `"float32"`, `"float16"`, `"weight_only_int8"`, `"dynamic_int8"`, `"int8"`, `"int16x8"`; ONNX: `"float32"`,
            `"weight_only_int8"`; OpenVINO: also `"mixed_bfloat16"`), `batch_size` and `tolerance` of files, `version`,
            `top_k`, `max_pixels`, `extra_signatures` and `warm_up` of a SavedModel, `input`, `calibration` and
            `features` of a TFLite file.

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
    """Export an open predictor as `export` does; return the path of the artifact, too."""
    writer = writer_of(path, format, options)
    return writer(predictor.model, path, card=predictor.card, images=images, **options)


def writer_of(path: str, format: str | None, options: dict[str, Any]) -> Callable:  # noqa: A002
    """Return the function that writes a format; refuse what cannot be written, and missing packages."""
    _io.check_writable(path)
    chosen = format_of(path, format)
    chosen.require_packages()
    writer = importlib.import_module(chosen.writer).write
    parameters = inspect.signature(writer).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("card", "images")]
    for name in options:
        if name not in known:
            raise TypeError(
                f"export() has no option {name!r} for format={chosen.name!r}.{_checks.nearest(name, known)} "
                f"Its options are: {', '.join(known)}."
            )
    return writer


def format_of(path: str, format: str | None = None) -> formats.Format:  # noqa: A002
    """Return the format of a path, and refuse an extension of another format."""
    by_extension = formats.of_file(path)
    extension = os.path.splitext(path)[1]
    if format is None and by_extension is None and extension[1:].isalpha() and not os.path.isdir(path):
        raise ValueError(
            f"`path` must end in {', '.join(formats.EXTENSIONS)}, or be the directory of a SavedModel (of any name "
            f"with format='saved_model'). Received: path={path!r}."
        )
    if format is None:
        return by_extension or formats.SAVED_MODEL
    chosen = formats.FORMATS[_checks.choice("format", format, list(formats.FORMATS))]
    if chosen is not (by_extension or formats.SAVED_MODEL):
        needed = f"must end in {chosen.extension}" if chosen.extension else "must be a directory"
        raise ValueError(f"`path` {needed} for format={format!r}. Received: path={path!r}.")
    return chosen


def _open(
    model: keras.Model | str | os.PathLike, preprocess: str | None, class_names: Sequence[str] | None
) -> tuple[keras.Model, ModelCard]:
    """Return a model and its description, with the kind of its output."""
    if isinstance(model, keras.Model):
        check_model(model)
        model = model.encoder() if isinstance(model, models.MaskedModel) else model
        card = keras_model.card_of_model(model, model.name, preprocess, class_names or ())
    else:
        with Progress(f"Opening {model}"):
            predictor = keras_model.open_model(os.fspath(model), preprocess, class_names)
        model, card = predictor.model, predictor.card
        check_model(model)
    *outer, last = endings(model)
    has_our_head = any(isinstance(m, ConfiguredModel) and m.get_config().get("include_top") for m in outer)
    is_known = card.values or card.recipe or class_names or class_names_of(model) or card.output in ("mask", "scores")
    if is_known or has_our_head or output_activation(model):
        return model, card
    output = "scores" if isinstance(last, (keras.layers.Dense, keras.layers.EinsumDense)) else "features"
    return model, dataclasses.replace(card, output=output, class_names=())
