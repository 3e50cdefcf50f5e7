"""Predictors that run a Keras model from a training run, a `.keras` file or a checkpoint."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_vit import models, zoo
from keras_vit import recipe as recipes
from keras_vit.checkpoints.keras_files import load_keras_file
from keras_vit.checkpoints.load import evaluated_model
from keras_vit.checkpoints.resize import resized_model
from keras_vit.inference import constant_weights
from keras_vit.inference.keras_card import card_of_model
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.predictor import FunctionPredictor
from keras_vit.models.predictions import output_activation
from keras_vit.runs import Run
from keras_vit.util import file_io, onednn
from keras_vit.util.progress import Progress


class KerasPredictor(FunctionPredictor):
    """Predictor that runs a Keras model.

    Args:
        model: The model, with its head.
        card: Description of the model.
        path: File or directory from which the model was loaded.
        whole_model: Masked model whose encoder is `model`, if the run trained without labels; None otherwise.

    Example:
    >>> predictor = keras_vit.open_predictor("runs/digits")
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
        return models.feature_extractor(self.model, blocks=(-1,))

    @property
    def stored_precision(self) -> str:
        """Precision of the computation."""
        return self.model.dtype_policy.compute_dtype


def open_run(run: Run, preprocess: str | None, class_names: Sequence[str], image_size: int | None) -> KerasPredictor:
    """Return the predictor of a run. Arguments and errors are the same as for `open_predictor`."""
    if image_size and not preprocess:
        trained = run.config["recipe"]["model"]["image_size"]
        preprocess = recipes.with_scaled_sizes(run.preprocess, image_size / trained)
    encoder, whole = _without_pretraining(run.model, image_size)
    card = dataclasses.replace(
        card_of_model(encoder, run.path, preprocess or run.preprocess, class_names, method="area"),
        metrics=run.results,
        # `class_names` replace the names of the classes, so the card keeps the names in the data.
        data={name: value for name, value in run.config["data"].items() if class_names or name != "class_names"},
        recipe=run.config["recipe"],
        versions=run.config.get("versions", {}),
        model_sha256=run.sha256,
        weights=run.config.get("weights", ""),
        run=run.path,
    )
    return KerasPredictor(encoder, card, run.path, whole)


def open_weights(
    path: str, preprocess: str | None, class_names: Sequence[str], image_size: int | None
) -> KerasPredictor:
    """Return the predictor of a `.keras` file or a checkpoint, at a local path or by name.

    Arguments and errors are the same as for `open_predictor`. If the model takes any image size, images are resized to
    224 x 224, unless `preprocess` resizes them.
    """
    named = zoo.parse_weights_name(path)
    file, whole = named.local(), None
    if file.endswith(".keras"):
        sha256 = file_io.sha256(file)  # before loading: if the file is replaced meanwhile, the hash does not match
        encoder, whole = _without_pretraining(load_keras_file(file), image_size)
    else:
        encoder, sha256 = evaluated_model(named, image_size, is_resized=preprocess is not None)
    card = card_of_model(encoder, path, preprocess, class_names)
    card = dataclasses.replace(card, model_sha256=sha256, weights=named.pinned() if named.location else "")
    return KerasPredictor(encoder, card, file, whole)


def _without_pretraining(model: keras.Model, image_size: int | None) -> tuple[keras.Model, models.MaskedModel | None]:
    """Return the encoder and the whole model if the model was trained without labels, else the model and None.

    With an image size, the first result is a copy for this size, and the second result is None.
    """
    encoder = model.encoder() if isinstance(model, models.MaskedModel) else model
    if image_size:
        return resized_model(encoder, image_size), None
    return encoder, None if encoder is model else model
