"""Model cards of Keras models: of a training run, or of any other model."""

import dataclasses
import os
from collections.abc import Sequence

import keras

from keras_vit import _io, training
from keras_vit.data import preprocess as preprocessing
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.probabilities import check_class_names
from keras_vit.models.base import ConfiguredModel
from keras_vit.models.normalization import of_images
from keras_vit.training import run_directory


def of_run(run: training.Run, preprocess: str | None = None, labels: Sequence[str] = ()) -> ModelCard:
    """Return the description of a run, or with the given preprocessing and labels in place of its own."""
    path = os.path.join(run.path, run_directory.MODEL)
    preprocess = preprocessing.complete(preprocess or run.preprocess, run.model.input_shape[1:])
    return dataclasses.replace(
        _describe(run.model, preprocess, labels or run.class_names),
        output=run.output,
        metrics=last_metrics(run.path, run.step),
        data={name: value for name, value in run.config["data"].items() if name != "class_names"},
        recipe=run.config["recipe"],
        versions=run.config.get("versions", {}),
        model_sha256=_io.sha256(path) if run.step is None and os.path.exists(path) else "",
        run=run.path,
    )


def of_model(model: keras.Model, name: str, preprocess: str | None, labels: Sequence[str] = ()) -> ModelCard:
    """Return the description of a model that is not one of a run; `name` is its file, for the error message.

    `preprocess=None` resizes, and normalizes as the model's weights were trained. Without labels, the class names are
    those that were loaded with the model, or numbers.
    """
    preprocess = preprocess or _normalization(model)
    if not preprocess:
        raise ValueError(
            f"{name!r} does not say how images are prepared for the model: preprocess is missing, such as "
            "'value_range(-1, 1)' for checkpoints of Vision Transformer and Big Transfer. Received: preprocess=None."
        )
    height, width, channels = model.input_shape[1:]
    preprocess = preprocessing.complete(preprocess, (height or 224, width or 224, channels), method="bilinear")
    return _describe(model, preprocess, labels or getattr(model, "class_names", None) or ())


def _describe(model: keras.Model, preprocess: str, class_names: Sequence[str]) -> ModelCard:
    config = model.get_config()
    has_head = len(model.output_shape) == 2 and config.get("include_top", True)
    return ModelCard(
        class_names=check_class_names(class_names, model.output_shape[-1]) if has_head else (),
        preprocess=preprocess,
        output=output_activation(model) or "softmax",
        image_shape=(*preprocessing.output_size(preprocess), model.input_shape[-1]),
        precision=model.dtype_policy.name,
        architecture=type(model).__name__,
        arguments=config if isinstance(model, ConfiguredModel) else {},
        parameters=model.count_params(),
    )


def _normalization(model: keras.Model) -> str | None:
    """Return the operation that normalizes pixels as the model's weights were trained; None if that is not known."""
    known = of_images(model)
    if known is None and not isinstance(model, ConfiguredModel):  # a model around one that knows it
        inner = (layer for layer in model.layers if isinstance(layer, keras.Model))
        return next(filter(None, map(_normalization, inner)), None)
    if known is None:
        return None
    if getattr(getattr(model, "config", None), "input_range", None) is not None:
        return f"value_range{model.config.input_range}"
    if all(number == 0.5 for side in known for number in side):
        return "value_range(-1, 1)"
    return f"value_norm({known[0]}, {known[1]})"


def last_metrics(directory: str, step: int | None = None) -> dict[str, object]:
    """Return the last line of a run's metrics, or of a step's, that has an evaluation; empty if there is none."""
    evaluations = (line for line in reversed(run_directory.read_metrics(directory)) if "eval_loss" in line)
    return next((line for line in evaluations if step is None or line.get("step") == step), {})


def output_activation(model: keras.Model) -> str | None:
    """Return `"softmax"` or `"sigmoid"` if the model ends in it."""
    name = model.get_config().get("classifier_activation")
    if name is None:
        name = getattr(getattr(model.layers[-1], "activation", None), "__name__", None)
    return name if name in ("softmax", "sigmoid") else None
