"""Keras models as classifiers: of a training run, a `.keras` file, or a checkpoint."""

import functools
import os
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_vit import checkpoints, models, training
from keras_vit.checkpoints.keras_files import load_keras_file
from keras_vit.inference import frozen, keras_card
from keras_vit.inference.classifier import FunctionClassifier
from keras_vit.inference.model_card import ModelCard
from keras_vit.training import run_directory


class KerasClassifier(FunctionClassifier):
    """Keras model with its head.

    Args:
        model: The model.
        card: Its description.
        path: File or directory that it came from.
        whole_model: Model of a run that trained without labels, around the encoder that `model` is; None for others.

    Example:
    >>> classifier = keras_vit.inference.open_classifier("runs/digits")
    >>> classifier.kind, classifier.card.image_shape
    ('keras', (8, 8, 1))
    """

    kind = "keras"

    def __init__(
        self, model: keras.Model, card: ModelCard, path: str = "", whole_model: models.MaskedModel | None = None
    ):
        super().__init__(card, lambda images: self._features_and_scores(np.asarray(images, np.float32)), path)
        self.model, self.whole_model = model, whole_model
        self._prepared = False
        self.scores_are = "probabilities" if keras_card.output_activation(model) else "logits"

    @functools.cached_property
    def _features_and_scores(self) -> Callable:
        model = models.representation(self.model)
        if keras.backend.backend() != "tensorflow":
            return model.predict_on_batch
        # The batch size stays open, so that a smaller last batch is not traced anew.
        spec = tf.TensorSpec((None, *self.model.input_shape[1:]), tf.float32)
        if self._prepared:
            return frozen.function(model, spec)
        return tf.function(lambda images: model(images, training=False), input_signature=[spec], autograph=False)

    def prepare_for_many(self) -> None:
        """Make the weights constants where that is faster. Later changes of the weights have no effect then."""
        if not self._prepared and frozen.pays(self.model):
            self._prepared = True
            self.__dict__.pop("_features_and_scores", None)

    @property
    def stored_precision(self) -> str:
        """Precision of the computation."""
        return self.model.dtype_policy.compute_dtype


def open_model(
    path: str,
    preprocess: str | None = None,
    labels: Sequence[str] | str | os.PathLike | None = None,
    checkpoint: str | int = "last",
) -> KerasClassifier:
    """Open a run, a `.keras` file or a checkpoint; arguments and errors as of `open_classifier`.

    A model of any image size gets images of 224 x 224, unless `preprocess` resizes.
    """
    names = _read_labels(labels)
    if run_directory.is_run(path) or checkpoint != "last":
        run = training.load_run(path, checkpoint)  # its errors name the missing part
        encoder, whole = _without_pretraining(run.model)
        card = keras_card.of_run(run._replace(model=encoder), preprocess, names)
        return KerasClassifier(encoder, card, run.path, whole)
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"There is no model at {path!r}. Expected a run directory, a .keras file, a checkpoint or an artifact."
        )
    model = load_keras_file(path) if path.endswith(".keras") else checkpoints.model_from_checkpoint(path)
    encoder, whole = _without_pretraining(model)
    return KerasClassifier(encoder, keras_card.of_model(encoder, path, preprocess, names), path, whole)


def _without_pretraining(model: keras.Model) -> tuple[keras.Model, models.MaskedModel | None]:
    """Return the encoder of a model that trained without labels, and the model; other models as they are, and None."""
    return (model.encoder(), model) if isinstance(model, models.MaskedModel) else (model, None)


def _read_labels(labels: Sequence[str] | str | os.PathLike | None) -> tuple[str, ...]:
    """Return class names, read from a file with one name per line if `labels` names one; empty for None."""
    if isinstance(labels, (str, os.PathLike)):
        with open(labels, encoding="utf-8") as file:
            return tuple(file.read().splitlines())
    return tuple(labels or ())
