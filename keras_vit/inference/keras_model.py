"""Keras models as classifiers: of a training run, a `.keras` file, a checkpoint, or in training."""

import functools
import os
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_vit import _io, checkpoints, models, training
from keras_vit.checkpoints.keras_files import load_keras_file
from keras_vit.data import preprocess as preprocessing
from keras_vit.inference.classifier import Classifier
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.probabilities import check_class_names, to_probabilities
from keras_vit.models.base import ConfiguredModel
from keras_vit.models.normalization import of_images
from keras_vit.training import run_directory


class KerasClassifier(Classifier):
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
        super().__init__(path, card)
        self.model, self.whole_model = model, whole_model
        self.scores_are = "probabilities" if _output_activation(model) else "logits"
        self._scores = self._compiled(model)

    def _compiled(self, model: keras.Model) -> Callable:
        if keras.backend.backend() != "tensorflow":
            return model.predict_on_batch
        # The batch size stays open, so that a smaller last batch is not traced anew.
        spec = tf.TensorSpec((None, *self.model.input_shape[1:]), tf.float32)
        return tf.function(lambda images: model(images, training=False), input_signature=[spec], autograph=False)

    @functools.cached_property
    def _features_and_scores(self) -> Callable:
        return self._compiled(models.representation(self.model))

    @property
    def stored_precision(self) -> str:
        """Precision of the computation."""
        return self.model.dtype_policy.compute_dtype

    def features(self, images: np.ndarray) -> np.ndarray:
        """Return the input of the classification head, float32 `[B, D]`."""
        return np.asarray(self._features_and_scores(np.asarray(images, np.float32))[0], np.float32)

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Return the output of the model, float32 `[B, classes]`; see `scores_are`."""
        return np.asarray(self._scores(np.asarray(images, np.float32)), np.float32)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return the probabilities `[B, classes]` of preprocessed images `[B, H, W, C]`."""
        scores = self.scores(images)
        if self.scores_are == "probabilities":
            return scores
        return keras.ops.convert_to_numpy(to_probabilities(scores, self.card.output))


class FunctionClassifier(Classifier):
    """Classifier made of a function, such as a model in training, of preprocessed images `[B, H, W, C]`.

    Args:
        card: Description of the classifier.
        function: Function to the input of the classification head, `[B, D]`, and logits `[B, classes]`.

    Example:
    >>> card = ModelCard(tuple("0123456789"), "decode|resize(32)|value_range(-1, 1)", "softmax", (32, 32, 3))
    >>> classifier = FunctionClassifier(card, keras_vit.models.representation(model).predict_on_batch)
    >>> classifier.predict(images).shape
    (4, 10)
    """

    kind = "function"
    scores_are = "logits"

    def __init__(self, card: ModelCard, function: Callable[[np.ndarray], Sequence[np.ndarray]]):
        super().__init__("", card)
        self._function = function

    def scores(self, images: np.ndarray) -> np.ndarray:
        return self._function(images)[1]

    def features(self, images: np.ndarray) -> np.ndarray:
        return self._function(images)[0]

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return the probabilities `[B, classes]` of preprocessed images `[B, H, W, C]`."""
        return keras.ops.convert_to_numpy(to_probabilities(self.scores(images), self.card.output))


def open_model(
    path: str,
    preprocess: str | None = None,
    labels: Sequence[str] | str | os.PathLike | None = None,
    checkpoint: str | int = "last",
) -> KerasClassifier:
    """Open a Keras model of any origin.

    Args:
        path: A run directory, a `.keras` file, or a checkpoint that `keras_vit.model_from_checkpoint` reads.
        preprocess: Preprocessing string, such as `"value_range(-1, 1)"`. Decoding and resizing are added where they are
            missing; a model of any image size gets images of 224 x 224. None for that of the run, or for the
            normalization that the checkpoint states.
        labels: Class names, or a file with one name per line. None for those of the run or checkpoint, or numbers.
        checkpoint: Weights of a run; see `keras_vit.training.load_run`.

    Raises:
        FileNotFoundError: If there is no model.
        ValueError: If `preprocess` is needed and missing, or the number of labels is not that of the classes.
    """
    if is_run(path) or checkpoint != "last":
        run = training.load_run(path, checkpoint)  # its errors name the missing part
        encoder, whole = _without_pretraining(run.model)
        card = card_of_run(run._replace(model=encoder), preprocess, read_labels(labels))
        return KerasClassifier(encoder, card, run.path, whole)
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"There is no model at {path!r}. Expected a run directory, a .keras file, a checkpoint or an artifact."
        )
    if path.endswith(".keras"):
        model = load_keras_file(path)
    else:
        model = checkpoints.model_from_checkpoint(path)
    encoder, whole = _without_pretraining(model)
    return KerasClassifier(encoder, card_of_model(encoder, path, preprocess, read_labels(labels)), path, whole)


def _without_pretraining(model: keras.Model) -> tuple[keras.Model, models.MaskedModel | None]:
    """Return the encoder of a model that trained without labels, and the model; other models as they are, and None."""
    return (model.encoder(), model) if isinstance(model, models.MaskedModel) else (model, None)


def is_run(path: str) -> bool:
    """Return whether a path is the directory of a run, finished or not, or the `.keras` file of one."""
    if path.endswith(".keras"):
        return os.path.isfile(path) and os.path.isfile(os.path.join(os.path.dirname(path), run_directory.CONFIG))
    names = (run_directory.MODEL, run_directory.METRICS, run_directory.CHECKPOINTS)
    return any(os.path.exists(os.path.join(path, name)) for name in names)


def read_labels(labels: Sequence[str] | str | os.PathLike | None) -> tuple[str, ...]:
    """Return class names, read from a file with one name per line if `labels` names one; empty for None."""
    if labels is None:
        return ()
    if isinstance(labels, (str, os.PathLike)):
        with open(labels, encoding="utf-8") as file:
            return tuple(file.read().splitlines())
    return tuple(labels)


def card_of_run(run: training.Run, preprocess: str | None = None, labels: Sequence[str] = ()) -> ModelCard:
    """Return the description of a run, or with the given preprocessing and labels in place of its own."""
    model = run.model
    path = os.path.join(run.path, run_directory.MODEL)
    preprocess = complete_preprocess(preprocess or run.preprocess, model.input_shape[1:])
    has_head = model.get_config().get("include_top", True)
    return ModelCard(
        class_names=check_class_names(labels or run.class_names, model.output_shape[-1]) if has_head else (),
        preprocess=preprocess,
        output=run.output,
        image_shape=(*preprocessing.output_size(preprocess), model.input_shape[-1]),
        precision=model.dtype_policy.name,
        architecture=type(model).__name__,
        arguments=model.get_config(),
        parameters=model.count_params(),
        metrics=last_metrics(run.path, run.step),
        data={name: value for name, value in run.config["data"].items() if name != "class_names"},
        recipe=run.config["recipe"],
        versions=run.config.get("versions", {}),
        model_sha256=_io.sha256(path) if run.step is None and os.path.exists(path) else "",
        run=run.path,
    )


def card_of_model(model: keras.Model, name: str, preprocess: str | None, labels: Sequence[str] = ()) -> ModelCard:
    """Return the description of a model that is not one of a run; `name` is its file, for the error message.

    `preprocess=None` resizes, and normalizes as the model's weights were trained. Without labels, the class names are
    those that were loaded with the model, or numbers.

    Raises:
        ValueError: If `preprocess` is None and the model does not know the normalization of its input, or the number of
            labels is not that of the classes.
    """
    preprocess = preprocess or _normalization(model)
    if not preprocess:
        raise ValueError(
            f"{name!r} does not say how images are prepared for the model: preprocess is missing, such as "
            "'value_range(-1, 1)' for checkpoints of Vision Transformer and Big Transfer. Received: preprocess=None."
        )
    height, width, channels = model.input_shape[1:]
    preprocess = complete_preprocess(preprocess, (height or 224, width or 224, channels), method="bilinear")
    has_head = len(model.output_shape) == 2 and model.get_config().get("include_top", True)
    known = labels or getattr(model, "class_names", None) or ()
    return ModelCard(
        class_names=check_class_names(known, model.output_shape[-1]) if has_head else (),
        preprocess=preprocess,
        output=_output_activation(model) or "softmax",
        image_shape=(*preprocessing.output_size(preprocess), model.input_shape[-1]),
        precision=model.dtype_policy.name,
        architecture=type(model).__name__,
        arguments=model.get_config() if isinstance(model, ConfiguredModel) else {},
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


def complete_preprocess(preprocess: str, input_shape: Sequence[int | None], method: str = "area") -> str:
    """Add decoding and resizing to the size of a model's input to a preprocessing string that lacks them.

    A recipe for images in arrays of one size has neither. On an image of the model's size the result computes the same.
    `method="area"` averages all pixels of a larger image.
    """
    height, width, channels = input_shape
    host, device = preprocessing.split(preprocess)
    parts = [host] if host.startswith("decode") else [f"decode({channels})", host]
    complete = "|".join(part for part in (*parts, device) if part)
    if height is None or width is None:
        return complete
    try:
        preprocessing.output_size(complete)
    except ValueError:
        resize = f"resize(({height}, {width}), method={method!r})"
        complete = "|".join(part for part in (*parts, resize, device) if part)
    return complete


def last_metrics(directory: str, step: int | None = None) -> dict[str, object]:
    """Return the last line of a run's metrics, or of a step's, that has an evaluation; empty if there is none."""
    evaluations = (line for line in reversed(run_directory.read_metrics(directory)) if "eval_loss" in line)
    return next((line for line in evaluations if step is None or line.get("step") == step), {})


def _output_activation(model: keras.Model) -> str | None:
    """Return `"softmax"` or `"sigmoid"` if the model ends in it."""
    name = model.get_config().get("classifier_activation")
    if name is None:
        name = getattr(getattr(model.layers[-1], "activation", None), "__name__", None)
    return name if name in ("softmax", "sigmoid") else None
