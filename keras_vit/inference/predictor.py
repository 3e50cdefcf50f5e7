"""Base classes of everything that predicts."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_vit.inference import image_inputs, outputs, preparation
from keras_vit.inference.model_card import EXPORT_AGAIN, ModelCard

BATCH_SIZE = 16  # of images that are read and prepared together


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Prediction for one image.

    Attributes:
        name: Path of the image, or its number.
        answer: Probabilities or values, `[k]`, or the mask, `[H, W]`; None if the image cannot be read.
        parts: The answer as pairs of a name and a number: the most probable classes, best first; all values; or the
            classes of a mask with their shares of the pixels, the largest first.
        uncertainty: From 0 to 1, of an answer with probabilities, see `outputs.uncertainty`; 0 of others.
        error: Why the image cannot be read; empty if it can.

    Example:
    >>> predictor = keras_vit.open_predictor("runs/digits")
    >>> found = next(predictor.predict_each("images/cat.png"))
    >>> label, probability = found.parts[0]
    """

    name: str
    answer: np.ndarray | None
    parts: outputs.Parts = ()
    uncertainty: float = 0.0
    error: str = ""


class Predictor:
    """Predictor of any format, from preprocessed images to probabilities, values or masks, as its card states.

    Args:
        path: File or directory of the predictor.
        card: Its description.

    Attributes:
        path, card: As given.
        kind: `"keras"`, `"saved_model"`, `"tflite"`, `"onnx"` or `"openvino"`.
        scores_are: What `scores` returns: `"logits"` or `"standardized"` values, else the answers, such as
            `"probabilities"`.
        runtime_precision: Precision of the card, or `"float32"` if this machine does not compute in it.
        features_unavailable: Why `features` raises an error, and what to do; None if features are available.

    Example:
    >>> predictor = keras_vit.inference.open_predictor("runs/digits")
    >>> isinstance(predictor, Predictor), predictor.scores_are
    (True, 'logits')
    """

    kind = ""
    features_unavailable: str | None = None

    def __init__(self, path: str, card: ModelCard):
        self.path = path
        self.card = card
        self.scores_are = card.output_name
        self.runtime_precision = card.precision
        if card.output == "features":
            self.features_unavailable = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of the probabilities; empty for a predictor of another kind."""
        return self.card.class_names

    @property
    def stored_precision(self) -> str:
        """Precision by the types in the file, whatever the card says."""
        return "float32"

    def _check_card(self, images: Sequence[Any], output: Sequence[Any], **found: Any) -> None:
        """Refuse a card of an artifact with other shapes, `[B, H, W, C]` and `[B, k]`, or other fields."""
        outputs = "values" if self.card.output == "values" else "class_names"
        found["image_shape"] = tuple(images)[1:]
        if self.card.output != "mask":  # [B, H, W], which does not show the number of classes
            found[outputs] = output[-1]
        for name, value in found.items():
            stated = getattr(self.card, name)
            stated = len(self.card.names) or value if name == outputs else stated  # their number, if there are any
            if stated != value:
                raise ValueError(
                    f"The model card of {self.path!r} must describe it. Received: {name}={stated!r} in the card, "
                    f"{value!r} in the artifact. {EXPORT_AGAIN}"
                )

    def preprocess(self, contents: Sequence[bytes]) -> np.ndarray:
        """Prepare encoded images: `[B, H, W, C]`."""
        return self.card.prepare(contents)

    def prepared(self, images: Any) -> np.ndarray:
        """Return images of any form that `predict` takes as the model's input, `[B, H, W, C]`."""
        if image_inputs.are_prepared(images, self.card):
            return np.asarray(images)
        return self.preprocess([image.read() for image in image_inputs.of_any(images)])

    def predict(self, images: Any) -> np.ndarray:
        """Return the answers for images: float32 `[B, k]`, or masks.

        By the `output` of the card they are probabilities, values in the unit of the data, scores, features or masks,
        integers. Scores and features of patches are `[B, h, w, k]`.

        Args:
            images: One or a list of: paths of images, folders, glob patterns and `.txt` lists of paths; contents of
                image files; PIL images; pixels, uint8 `[H, W, C]` or `[B, H, W, C]`. Or the preprocessed images, floats
                `[B, H, W, C]`.

        Raises:
            FileNotFoundError: If there is no file.
            ValueError: If an image cannot be read. `predict_each` goes on with the next one.
        """
        if image_inputs.are_prepared(images, self.card):
            return self._predict(np.asarray(images))
        answers = []
        for found in self.predict_each(images):
            if found.answer is None:
                raise ValueError(f"Expected images that can be read. Received: {found.name}: {found.error}")
            answers.append(found.answer)
        return np.stack(answers)

    def predict_each(
        self, images: Any, batch_size: int = BATCH_SIZE, top_k: int = outputs.TOP_K
    ) -> Iterator[Prediction]:
        """Yield the prediction for each image, in order, also for images that cannot be read.

        Args:
            images: Images as of `predict` that are not preprocessed.
            batch_size: Number of images that are read and predicted together.
            top_k: Number of classes in `parts`, if they have probabilities.

        Example:
        >>> predictor = keras_vit.open_predictor("runs/digits")
        >>> [(found.name, found.error, len(found.parts)) for found in predictor.predict_each("images/cat.png")]
        [('images/cat.png', '', 5)]
        """
        prepare = preparation.image_function(self.card.preprocess)
        given = image_inputs.of_any(images)
        for start in range(0, len(given), batch_size):
            batch = given[start : start + batch_size]
            prepared = [_prepare(image, prepare) for image in batch]
            readable = [image for image in prepared if not isinstance(image, str)]
            answers = iter(self.predict(np.stack(readable)) if readable else ())
            for (name, _), image in zip(batch, prepared, strict=True):
                if isinstance(image, str):
                    yield Prediction(name, None, error=image)
                    continue
                answer, names, kind, doubt = next(answers), self.card.names, self.card.output_name, 0.0
                if kind == "probabilities":
                    doubt = outputs.uncertainty(answer, self.card.has_independent_classes)
                yield Prediction(name, answer, outputs.parts(answer, names, kind, top_k) if names else (), doubt)

    def _predict(self, images: np.ndarray) -> np.ndarray:
        """Return the answers for preprocessed images `[B, H, W, C]`."""
        raise NotImplementedError

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Return the network's raw output, `[B, k]` or `[B, h, w, k]`, if it is known, else the answers."""
        return self.predict(images)

    def features(self, images: np.ndarray) -> np.ndarray:
        """Return the input of the classification head, float32 `[B, D]`; of two heads, the mean of their inputs.

        The images are as those of `predict`.

        Raises:
            ValueError: If the predictor does not compute features; see `features_unavailable`.
        """
        if self.features_unavailable is None:  # the output itself
            return self.predict(images)
        raise ValueError(f"Features of {self.path!r} are not available: {self.features_unavailable}.")

    def patch_features(self, images: np.ndarray) -> np.ndarray:
        """Return the patches after the last block and the final norm, float32 `[B, h, w, D]`, of a Keras model."""
        raise ValueError(f"Features of patches need a run, a .keras file or a checkpoint. Received: {self.path!r}.")

    def prepare_for_many(self) -> None:
        """Spend some seconds and memory where that makes hundreds of predictions faster."""

    def close(self) -> None:
        """Free what the predictor holds."""


class FunctionPredictor(Predictor):
    """Predictor made of a function, such as a model in training, of preprocessed images `[B, H, W, C]`.

    Args:
        card: Description of the predictor.
        function: Function to the input of the classification head, `[B, D]`, and the raw output, `[B, k]` or
            `[B, h, w, k]`.

    Example:
    >>> card = ModelCard(tuple("0123456789"), "decode|resize(32)|value_range(-1, 1)", "softmax", (32, 32, 3))
    >>> predictor = FunctionPredictor(card, keras_vit.models.representation(model).predict_on_batch)
    >>> predictor.predict(images).shape
    (4, 10)
    """

    kind = "function"

    def __init__(self, card: ModelCard, function: Callable[[np.ndarray], Sequence[Any]], path: str = ""):
        super().__init__(path, card)
        self._function = function
        raw = {"probabilities": "logits", "values": "standardized", "mask": "logits"}
        self.scores_are = raw.get(card.output_name, card.output_name)

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Return the raw output of the function, float32 `[B, k]` or `[B, h, w, k]`; see `scores_are`."""
        return np.asarray(self._function(self.prepared(images))[1], np.float32)

    def features(self, images: np.ndarray) -> np.ndarray:
        """Return the input of the classification head, float32 `[B, D]`."""
        return np.asarray(self._function(self.prepared(images))[0], np.float32)

    def _predict(self, images: np.ndarray) -> np.ndarray:
        return self.answers(self.scores(images))

    def answers(self, scores: np.ndarray) -> np.ndarray:
        """Return the answers of scores."""
        if self.scores_are == self.card.output_name:
            return scores
        import keras

        # Masks one by one: enlarged logits take four bytes for each pixel and class.
        parts = np.split(scores, len(scores)) if self.card.output == "mask" and len(scores) else [scores]
        return np.concatenate([keras.ops.convert_to_numpy(self.card.answers(part)) for part in parts])


def _prepare(image: image_inputs.NamedImage, prepare: Callable[[bytes], np.ndarray]) -> np.ndarray | str:
    """Return a preprocessed image, `[H, W, C]`, or why it cannot be read."""
    try:
        return prepare(image.read())
    except OSError as error:
        return error.strerror or str(error)
    except Exception as error:
        reason = preparation.unreadable(error)
        if reason is None:
            raise
        return reason


def in_batches(function: Callable[[np.ndarray], np.ndarray], images: np.ndarray, batch_size: int) -> np.ndarray:
    """Apply a function of `[batch_size, H, W, C]` to images `[N, H, W, C]`, and return its results for all of them.

    The last batch is padded with zeros.
    """
    outputs = []
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        missing = batch_size - len(batch)
        padded = np.pad(batch, [(0, missing), (0, 0), (0, 0), (0, 0)]) if missing else batch
        outputs.append(function(padded)[: len(batch)])
    return np.concatenate(outputs)
