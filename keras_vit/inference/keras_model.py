"""Predictors that run a Keras model from a training run, a `.keras` file or a checkpoint."""

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit import checkpoints, models, zoo
from keras_vit import recipe as recipes
from keras_vit.checkpoints.formats import open_source
from keras_vit.checkpoints.keras_files import load_keras_file
from keras_vit.checkpoints.load import evaluated_size
from keras_vit.data import preprocess as preprocessing
from keras_vit.inference import constant_weights
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.predictor import FunctionPredictor
from keras_vit.models.base import ConfiguredModel, class_names_of, values_of
from keras_vit.models.normalization import SYMMETRIC, of_images, operation
from keras_vit.models.representation import activation_of, endings
from keras_vit.outputs import CLASSIFICATION
from keras_vit.runs import run_directory
from keras_vit.runs.trained_run import Run, open_run
from keras_vit.util import file_io, onednn
from keras_vit.util.progress import Progress
from keras_vit.util.values import Values


class KerasPredictor(FunctionPredictor):
    """Predictor that runs a Keras model.

    Args:
        model: The model, with its head.
        card: Description of the model.
        path: File or directory from which the model was loaded.
        whole_model: Masked model whose encoder is `model`, if the run trained without labels; None otherwise.

    Example:
    >>> predictor = keras_vit.inference.open_predictor("runs/digits")
    >>> predictor.kind, predictor.card.image_shape
    ('keras', (8, 8, 1))
    """

    kind = "keras"

    def __init__(
        self, model: keras.Model, card: ModelCard, path: str = "", whole_model: models.MaskedModel | None = None
    ):
        if keras.backend.backend() == "tensorflow":
            onednn.advise()
        super().__init__(card, lambda images: self._features_and_scores(np.asarray(images, np.float32)), path)
        self.model, self.whole_model, self.image_shape = model, whole_model, model.input_shape[1:]
        self._prepared = False
        if output_activation(model) and not card.kind.has_masks:
            self.scores_are = card.output_name

    @functools.cached_property
    def _features_and_scores(self) -> Callable:
        model = models.representation(self.model)
        if keras.backend.backend() != "tensorflow":
            return model.predict_on_batch
        # If the batch size is not fixed, a smaller last batch does not cause another trace.
        spec = tf.TensorSpec((None, *self.model.input_shape[1:]), tf.float32)
        if self._prepared:
            with Progress("Preparing the model"):
                return constant_weights.function(model, spec)
        return tf.function(lambda images: model(images, training=False), input_signature=[spec], autograph=False)

    def prepare_for_many(self) -> None:
        """Make the weights constants if that is faster. Later changes of the weights then have no effect."""
        if not self._prepared and constant_weights.pays(self.model):
            self._prepared = True
            self.__dict__.pop("_features_and_scores", None)

    def patch_features(self, images: np.ndarray) -> np.ndarray:
        """Return the patch tokens after the last block and the final norm, float32 `[B, h, w, D]`."""
        return np.asarray(self._patch_maps.predict_on_batch(self.prepared(images))["maps"][0], np.float32)

    @functools.cached_property
    def _patch_maps(self) -> keras.Model:
        return models.features(self.model, blocks=(-1,))

    @property
    def stored_precision(self) -> str:
        """Precision of the computation."""
        return self.model.dtype_policy.compute_dtype


def open_model(
    path: str,
    preprocess: str | None = None,
    labels: Sequence[str] | None = None,
    checkpoint: str | int | None = None,
    image_size: int | None = None,
) -> KerasPredictor:
    """Open a run, a `.keras` file or a checkpoint at a local path or by name.

    Arguments and errors are the same as for `open_predictor`, except that `labels` must be a sequence.

    If the model takes any image size, images are resized to 224 x 224, unless `preprocess` resizes them.
    """
    if run_directory.is_run(path) or checkpoint is not None:
        run = open_run(path, checkpoint)  # its errors name the missing part
        if image_size and not preprocess:
            trained = run.config["recipe"]["model"]["image_size"]
            preprocess = recipes.with_scaled_sizes(run.preprocess, image_size / trained)
        encoder, whole = _without_pretraining(run.model, image_size)
        return KerasPredictor(encoder, card_of_model(encoder, path, preprocess, labels or (), run), run.path, whole)
    named = zoo.parse(path)
    file = named.local()
    sha256 = _sha256(file)  # before loading: if the file is replaced meanwhile, the hash does not match
    if file.endswith(".keras"):
        encoder, whole = _without_pretraining(load_keras_file(file), image_size)
    else:
        size = image_size or (evaluated_size(path) if preprocess is None else None)
        overrides: dict[str, Any] = {"image_size": size} if size else {}
        encoder, whole = checkpoints.model_from_checkpoint(path, **overrides), None
    card = card_of_model(encoder, path, preprocess, labels or ())
    origin = named.pinned() if named.address else ""
    return KerasPredictor(encoder, dataclasses.replace(card, model_sha256=sha256, weights=origin), file, whole)


def _sha256(path: str) -> str:
    """Return the SHA-256 of a `.keras` file, or of all files of a checkpoint."""
    if path.endswith(".keras"):
        return file_io.sha256(path)
    with contextlib.closing(open_source(path)) as source:
        return file_io.joint_sha256(source.files)


def _without_pretraining(model: keras.Model, image_size: int | None) -> tuple[keras.Model, models.MaskedModel | None]:
    """Return the encoder and the whole model if the model was trained without labels, else the model and None.

    With an image size, the first result is a copy for this size, and the second result is None.
    """
    encoder = model.encoder() if isinstance(model, models.MaskedModel) else model
    if image_size:
        return _resized(encoder, image_size), None
    return encoder, None if encoder is model else model


def _resized(model: keras.Model, image_size: int) -> keras.Model:
    """Return a copy of the model for images of another size, with resized position embeddings."""
    if not isinstance(model, ConfiguredModel):
        raise ValueError(f"image_size is for models of keras_vit. Received: image_size={image_size} for another model.")
    config = model.get_config()
    grid = {name: None for name in config if name == "position_grid"}  # an argument of models for any image size
    copy = type(model).from_config({**config, **grid, "image_size": image_size})
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        checkpoints.load_checkpoint(copy, path)
    return copy


_FIELDS_OF_CARD = ("class_names", "values", "resizing")  # arguments that are separate fields of the card


def card_of_model(
    model: keras.Model,
    name: str,
    preprocess: str | None,
    labels: Sequence[str] = (),
    run: Run | None = None,
) -> ModelCard:
    """Return the card of a model.

    Args:
        model: The model, or the encoder if the run trained without labels.
        name: File of the model, for the error message.
        preprocess: Preprocessing string. By default, the string of the run. Without a run, images are resized, and
            normalized in the same way as when the weights were trained.
        labels: Names of the classes. By default, the names come from the run or from the loaded model; otherwise the
            names are numbers.
        run: The run of the model, if any.
    """
    stated = preprocess or (run.preprocess if run else getattr(model, "preprocess", None) or _normalization(model))
    if not stated:
        raise ValueError(
            f"The preprocessing of images for {name!r} is unknown. Pass preprocess='value_range(-1, 1)' "
            "(--preprocess='value_range(-1, 1)') for checkpoints of Vision Transformer and Big Transfer, or the values "
            "with which the model was trained. Received: preprocess=None."
        )
    check_input(model)
    height, width, channels = model.input_shape[1:]
    method = {} if run else {"method": "bilinear"}
    stated = preprocessing.complete(stated, (height or 224, width or 224, channels), **method)
    size, expected = preprocessing.output_size(stated), (height, width)
    if size != expected and None not in expected:
        raise ValueError(
            f"The model takes images of {expected[0]} by {expected[1]} pixels. Received: {size[0]} by {size[1]} after "
            f"preprocess={stated!r}. Pass image_size={size[0]} (--image_size={size[0]}), or resize to {expected}."
        )
    arguments = model.get_config() if isinstance(model, ConfiguredModel) else {}
    card = ModelCard(
        preprocess=stated,
        image_shape=(*size, channels),
        precision=model.dtype_policy.name,
        architecture=type(model).__name__,
        arguments={name: value for name, value in arguments.items() if name not in _FIELDS_OF_CARD},
        parameters=model.count_params(),
        **_outputs(model, labels, run),
    )
    if run is None:
        return card
    return dataclasses.replace(
        card,
        metrics=run_directory.last_evaluation(run.path, run.step),
        # `labels` replace the names of the classes, so the card keeps the names in the data.
        data={name: value for name, value in run.config["data"].items() if labels or name != "class_names"},
        recipe=run.config["recipe"],
        versions=run.config.get("versions", {}),
        model_sha256=run.sha256,
        weights=run.config.get("weights", ""),
        run=run.path,
    )


def _outputs(model: keras.Model, labels: Sequence[str], run: Run | None) -> dict[str, Any]:
    """Return the card's fields about the outputs of a model."""
    own = [inner for inner in endings(model) if isinstance(inner, ConfiguredModel)]
    names = labels or (run.class_names if run else class_names_of(model)) or ()
    rank, is_given = len(model.output_shape), has_given_head(model)
    is_dense = rank == 4 and bool(names or is_given)
    if not (rank == 2 or is_dense) or not all(inner.get_config().get("include_top", True) for inner in own):
        if labels:
            raise ValueError(f"labels are for a model with a classification head. Received: {len(labels)} labels.")
        return {"class_names": (), "output": "features"}
    count, stated = model.output_shape[-1], run.config["data"].get("values") if run else None
    values = Values.from_dict(stated) if stated else values_of(model)
    if values is not None:
        if labels or len(values.names) != count:
            raise ValueError(
                f"The model has {count} outputs, the values {', '.join(values.names)}, and no classes. Received: "
                f"labels={labels!r}."
            )
        return {"class_names": (), "output": "values", "values": values.to_dict()}
    if is_dense and count > 1:
        return {"class_names": check_class_names(names, count), "output": "mask"}
    if is_dense or is_given and not (names or run or output_activation(model)):  # the meaning of the head is unknown
        return {"class_names": (), "output": "scores"}
    output = output_activation(model) or ("sigmoid" if count == 1 else "softmax")
    return {"class_names": check_class_names(names, count), "output": run.output if run else output}


def has_given_head(model: keras.Model) -> bool:
    """Return whether a model, or the inner model that computes its output, has a custom layer as its head."""
    configs = (getattr(inner, "config", None) for inner in endings(model) if isinstance(inner, ConfiguredModel))
    return any(getattr(config, "head", None) is not None for config in configs)


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


def output_activation(model: keras.Model) -> str | None:
    """Return `"softmax"` or `"sigmoid"` if it is the model's last activation, else None."""
    name = activation_of(endings(model)[-1])
    return name if name in CLASSIFICATION else None


def check_class_names(class_names: Sequence[object] | None, num_classes: int) -> tuple[str, ...]:
    """Return class names as strings, by default numbers. Raise an error unless there is one name per class."""
    names = tuple(map(str, class_names or range(num_classes)))
    if len(names) != num_classes:
        raise ValueError(
            f"class_names must contain one name for each of the {num_classes} classes. Received: {len(names)}."
        )
    return names
