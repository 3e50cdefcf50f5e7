"""Base classes of predictors."""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from keras_vit import outputs
from keras_vit.inference import image_batches, image_inputs
from keras_vit.inference.model_card import EXPORT_AGAIN, ModelCard

BATCH_SIZE = 16  # images per call of the model


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Prediction for one image.

    Attributes:
        name: Path of the image, or its number.
        output: Probabilities or values, `[k]`, or a mask, `[H, W]`; None if the image cannot be read.
        top: The prediction as pairs of name and number: the most probable classes, in descending order; all values;
            or the classes in a mask with their shares of the pixels, in descending order.
        uncertainty: Uncertainty of probabilities, from 0 to 1, see `Output.uncertainty`; 0 for other outputs.
        error: Reason why the image cannot be read; empty if it can.

    Example:
    >>> predictor = keras_vit.open_predictor("runs/digits")
    >>> found = next(predictor.predict_each("images/cat.png"))
    >>> label, probability = found.top[0]
    """

    name: str
    output: np.ndarray | None
    top: outputs.Parts = ()
    uncertainty: float = 0.0
    error: str = ""


class Predictor:
    """Base class of predictors, which map images to probabilities, values or masks.

    Args:
        path: File or directory of the predictor.
        card: Description of the predictor, which defines its outputs.

    Attributes:
        path, card: The arguments.
        kind: `"keras"`, or the name of the artifact's format in `keras_vit.inference.formats.FORMATS`.
        scores_are: Meaning of `scores`: `"logits"`, `"standardized"` values, or the name of the predictions, such as
            `"probabilities"`.
        image_shape: Shape of a preprocessed image, `(H, W, C)`, with None for any size; None if it is not checked.
        runtime_precision: Precision in the card, or `"float32"` if this machine does not support that precision.
        features_unavailable: Reason why `features` raises an error, and what to do; None if features are available.

    Example:
    >>> predictor = keras_vit.open_predictor("runs/digits")
    >>> isinstance(predictor, Predictor), predictor.scores_are
    (True, 'logits')
    """

    kind = ""
    features_unavailable: str | None = None
    origin: tuple[Callable[..., Any], tuple[Any, ...]] | None = None  # function that opens it again, and its arguments

    def __init__(self, path: str, card: ModelCard):
        self.path = path
        self.card = card
        self.image_shape: tuple[int | None, ...] | None = card.image_shape
        self.scores_are = card.output_name
        self.runtime_precision = card.precision
        if card.kind.has_features:
            self.features_unavailable = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the arguments of `open_predictor`, without the weights."""
        if self.origin is None:
            raise TypeError(f"Only a predictor of open_predictor can be pickled. Received: {type(self).__name__}.")
        reopened, arguments = self.origin
        return reopened, (arguments, self.card.sha256)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of the probabilities; empty for a predictor without classes."""
        return self.card.class_names

    @property
    def stored_precision(self) -> str:
        """Precision according to the dtypes in the file, independent of the card."""
        return "float32"

    def _check_card(self, images: Sequence[Any], output: Sequence[Any], **found: Any) -> None:
        """Raise an error if the card differs from the artifact in the shapes of input and output, or in other fields.

        Args:
            images: Shape of the input, `[B, H, W, C]`.
            output: Shape of the output, `[B, k]`, or `[B, H, W]` for masks.
            found: Values of other fields in the artifact.
        """
        names = "values" if self.card.kind.has_values else "class_names"
        found["image_shape"] = tuple(images)[1:]
        if not self.card.kind.has_masks:  # [B, H, W] does not contain the number of classes
            found[names] = output[-1]
        for name, value in found.items():
            stated = getattr(self.card, name)
            stated = len(self.card.names) or value if name == names else stated  # the number of names, if any
            if stated != value:
                raise ValueError(
                    f"The model card of {self.path!r} must match the file. Received: {name}={stated!r} in the card, "
                    f"{value!r} in the artifact. {EXPORT_AGAIN}"
                )

    def preprocess(self, contents: Sequence[bytes]) -> np.ndarray:
        """Preprocess encoded images to `[B, H, W, C]`."""
        return self.card.prepare(contents)

    def prepared(self, images: Any) -> np.ndarray:
        """Convert images in any form that `predict` accepts to the input of the model, `[B, H, W, C]`."""
        items, found = image_inputs.prepared(images, self.card, self.image_shape)
        return self.preprocess([image.read() for image in image_inputs.of_any(items)]) if found is None else found

    def predict(self, images: Any) -> np.ndarray:
        """Predict images.

        Args:
            images: Paths of images or folders, glob patterns, `.txt` lists of paths, contents of image files, PIL
                images, or pixels (integers from 0 to 255, `[H, W, C]` or `[B, H, W, C]`). Several such items can be
                passed as a list or another iterable. Float arrays `[B, H, W, C]` are preprocessed images.

        Returns:
            Probabilities, values in the unit of the data, scores or features, float32 `[B, k]`; or masks, integers
            `[B, H, W]`. `card.output` states which. Scores and features of patches are `[B, h, w, k]`.

        Raises:
            FileNotFoundError: If a file does not exist.
            ValueError: If an image cannot be read, or `images` is empty or has the wrong shape. After an image that
                cannot be read, `predict_each` continues.
        """
        items, found = image_inputs.prepared(images, self.card, self.image_shape)
        if found is not None:
            return self._predict(found)
        predictions = []
        for each in self.predict_each(items):
            if each.output is None:
                raise ValueError(f"Expected images that can be read. Received: {each.name}: {each.error}")
            predictions.append(each.output)
        return np.stack(predictions)

    def predict_each(
        self, images: Any, batch_size: int = BATCH_SIZE, top_k: int = outputs.TOP_K
    ) -> Generator[Prediction, None, None]:
        """Yield a `Prediction` for each image, in order. If an image cannot be read, its prediction has an `error`.

        Args:
            images: Images in any form that `predict` accepts, except preprocessed images.
            batch_size: Number of images per call of the model. Threads read and preprocess the next images meanwhile.
            top_k: Number of classes in `top` of a prediction with probabilities.

        Example:
        >>> predictor = keras_vit.open_predictor("runs/digits")
        >>> [(found.name, found.error, len(found.top)) for found in predictor.predict_each("images/cat.png")]
        [('images/cat.png', '', 5)]
        """
        kind = self.card.kind
        for name, output, error in self._each(images, batch_size, self.predict):
            if output is None:
                yield Prediction(name, None, error=error)
                continue
            doubt = kind.uncertainty(output, self.card.has_independent_classes)
            yield Prediction(name, output, kind.parts(output, self.card.names, top_k), doubt)

    def features_each(self, images: Any, batch_size: int = BATCH_SIZE) -> Iterator[Prediction]:
        """Yield a `Prediction` for each image, in order, whose `output` is the row of `features`, without `top`.

        Arguments and errors are the same as for `predict_each`.

        Example:
        >>> predictor = keras_vit.open_predictor("runs/digits")
        >>> [found.output.shape for found in predictor.features_each("images/cat.png")]
        [(8,)]
        """
        for name, row, error in self._each(images, batch_size, self.features):
            yield Prediction(name, row, error=error)

    def _each(
        self, images: Any, batch_size: int, compute: Callable[[np.ndarray], np.ndarray]
    ) -> Iterator[tuple[str, np.ndarray | None, str]]:
        """Yield the name, the row of `compute` and the error of each image. Threads prepare the next images."""
        chunks = image_batches.chunks(image_inputs.stream(images), batch_size)
        with contextlib.closing(image_batches.read(((None, chunk) for chunk in chunks), self.card.preprocess)) as found:
            for batch in found:
                yield from batch.results(compute)

    def _predict(self, images: np.ndarray) -> np.ndarray:
        """Predict preprocessed images `[B, H, W, C]`."""
        raise NotImplementedError

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Return the model's raw output, `[B, k]` or `[B, h, w, k]`, if available, else the predictions."""
        return self.predict(images)

    def features(self, images: np.ndarray) -> np.ndarray:
        """Return the input of the classification head, float32 `[B, D]`. For two heads, return the mean of the inputs.

        `images` may have any form that `predict` accepts.

        Raises:
            ValueError: If the predictor does not compute features; see `features_unavailable`.
        """
        if self.features_unavailable is None:  # the output is the features
            return self.predict(images)
        raise ValueError(f"Features of {self.path!r} are not available: {self.features_unavailable}.")

    def patch_features(self, images: np.ndarray) -> np.ndarray:
        """Return the patch tokens after the last block and the final norm, float32 `[B, h, w, D]`.

        Only Keras models compute them.
        """
        raise ValueError(f"Features of patches need a run, a .keras file or a checkpoint. Received: {self.path!r}.")

    def prepare_for_many(self) -> None:
        """Spend some seconds and memory if that makes hundreds of predictions faster."""

    def close(self) -> None:
        """Free the resources of the predictor."""


class FunctionPredictor(Predictor):
    """Predictor that calls a function, such as a model in training.

    Args:
        card: Description of the predictor.
        function: Function from preprocessed images `[B, H, W, C]` to the input of the classification head, `[B, D]`,
            and the raw output, `[B, k]` or `[B, h, w, k]`.

    Example:
    >>> card = ModelCard(tuple("0123456789"), "decode|resize(32)|value_range(-1, 1)", "softmax", (32, 32, 3))
    >>> predictor = FunctionPredictor(card, keras_vit.models.representation(model).predict_on_batch)
    >>> predictor.predict(images).shape
    (4, 10)
    """

    kind = "function"

    def __init__(self, card: ModelCard, function: Callable[[np.ndarray], Sequence[Any]], path: str = ""):
        super().__init__(path, card)
        self._function, self.image_shape = function, None
        self.scores_are = card.kind.raw or card.output_name

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Return the raw output of the function, float32 `[B, k]` or `[B, h, w, k]`; see `scores_are`."""
        return np.asarray(self._function(self.prepared(images))[1], np.float32)

    def features(self, images: np.ndarray) -> np.ndarray:
        """Return the input of the classification head, float32 `[B, D]`."""
        return np.asarray(self._function(self.prepared(images))[0], np.float32)

    def _predict(self, images: np.ndarray) -> np.ndarray:
        return self.predictions(self.scores(images))

    def predictions(self, scores: np.ndarray) -> np.ndarray:
        """Convert scores to predictions."""
        if self.scores_are == self.card.output_name:
            return scores
        import keras

        # Convert masks one by one: resized logits take four bytes per pixel and class.
        parts = np.split(scores, len(scores)) if self.card.kind.has_masks and len(scores) else [scores]
        return np.concatenate([keras.ops.convert_to_numpy(self.card.predictions(part)) for part in parts])


def in_batches(function: Callable[[np.ndarray], np.ndarray], images: np.ndarray, batch_size: int) -> np.ndarray:
    """Apply a function of images `[batch_size, H, W, C]` to images `[N, H, W, C]`. Zeros fill the last batch."""
    outputs = []
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        missing = batch_size - len(batch)
        padded = np.pad(batch, [(0, missing), (0, 0), (0, 0), (0, 0)]) if missing else batch
        outputs.append(function(padded)[: len(batch)])
    return np.concatenate(outputs)
