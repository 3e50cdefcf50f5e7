"""Model cards of Keras models."""

from collections.abc import Sequence

import keras
from absl import logging

from keras_vit.data import preprocess as preprocessing
from keras_vit.inference.model_card import ModelCard
from keras_vit.models.base import ConfiguredModel
from keras_vit.models.normalization import SYMMETRIC, of_images, operation
from keras_vit.models.predictions import predictions_of

# Arguments that are separate fields of the card.
_FIELDS = ("class_names", "values", "prediction_activation", "resizing")


def card_of_model(
    model: keras.Model, name: str, preprocess: str | None, class_names: Sequence[str] = (), method: str = "bilinear"
) -> ModelCard:
    """Return the card of a model.

    Args:
        model: The model, or the encoder of a masked model.
        name: File of the model, for the error message.
        preprocess: Preprocessing string. By default, images are resized, and normalized in the same way as when the
            weights were trained.
        class_names: Names of the classes. By default, the names in the model, or numbers.
        method: Method of resizing, for a preprocessing string that does not resize; see `preprocess.complete`.
    """
    check_input(model)
    stated = preprocess or getattr(model, "preprocess", None) or _normalization(model)
    if not stated:
        raise ValueError(
            f"The preprocessing of images for {name!r} is unknown. Pass preprocess='value_range(-1, 1)' "
            "(--preprocess='value_range(-1, 1)') for checkpoints of Vision Transformer and Big Transfer, or the values "
            "with which the model was trained. Received: preprocess=None."
        )
    height, width, channels = model.input_shape[1:]
    stated = preprocessing.complete(stated, (height or 224, width or 224, channels), method)
    size, expected = preprocessing.output_size(stated), (height, width)
    if size != expected and None not in expected:
        raise ValueError(
            f"The model takes images of {expected[0]} by {expected[1]} pixels. Received: {size[0]} by {size[1]} after "
            f"preprocess={stated!r}. Pass image_size={size[0]} (--image_size={size[0]}), or resize to {expected}."
        )
    output, class_names, values = predictions_of(model, class_names)
    arguments = model.get_config() if isinstance(model, ConfiguredModel) else {}
    return ModelCard(
        class_names=class_names,
        preprocess=stated,
        output=output,
        image_shape=(*size, channels),
        precision=model.dtype_policy.name,
        architecture=type(model).__name__,
        arguments={name: value for name, value in arguments.items() if name not in _FIELDS},
        parameters=model.count_params(),
        values=values.to_dict() if values else {},
    )


def check_input(model: keras.Model) -> None:
    """Raise an error if a model does not have a single input of images."""
    shapes = [tuple(tensor.shape) for tensor in getattr(model, "inputs", None) or ()]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise ValueError(
            "The model must have one input of images, [B, H, W, C]. Begin a sequential model with keras.Input; export "
            f"a model with more inputs by Keras' `model.export`. Received: {model.name!r} with the inputs {shapes}."
        )


def _normalization(model: keras.Model) -> str | None:
    """Return the operation that normalizes pixels for a model that is or contains a model of keras_vit, else None."""
    known = of_images(model)
    if known is None and not isinstance(model, ConfiguredModel):  # it may contain a model of keras_vit
        inner = (layer for layer in model.layers if isinstance(layer, keras.Model))
        return next(filter(None, map(_normalization, inner)), None)
    if known is None:
        logging.warning(
            "The normalization of the images of %r is unknown. Pixels are mapped to [-1, 1], as by "
            "keras_vit.preprocess_input. Pass preprocess (--preprocess) if the model was trained with other values.",
            model.name,
        )
    return operation(known or SYMMETRIC, getattr(getattr(model, "config", None), "input_range", None))
