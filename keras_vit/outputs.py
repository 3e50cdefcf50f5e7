"""Kinds of outputs: everything that depends on what a model predicts.

A model predicts exclusive or independent classes, values, or masks, or it returns features or scores. Each kind is a
class, which defines the labels of its data, its predictions and their display, the names in artifacts, and the limits
of their verification. `of` returns a kind by its name.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.util.formatting import as_number, percent
from keras_vit.util.values import Values, shortest

TOP_K = 5
PRECISIONS = ("float32", "bfloat16", "float16", "dynamic_int8", "int8", "int16x8")
Parts = Sequence[tuple[str, float]]
Size = tuple[int, int]  # (H, W)


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Limits for the differences between a model and its artifact.

    Attributes:
        max_difference: Largest allowed difference, as in `Comparison`.
        top1_agreement: Minimum top-1 agreement.
        accuracy_drop: Largest allowed loss of accuracy; None to ignore accuracy.

    Example:
    >>> images = ["images/*.png"]
    >>> keras_vit.export("runs/digits", "a.tflite", images=images, tolerance=Tolerance(1e-3)).examples
    1
    """

    max_difference: float = 1e-4
    top1_agreement: float = 1.0
    accuracy_drop: float | None = None


class Output:
    """Base class of the kinds, with the properties of raw outputs, which have neither labels nor names.

    Attributes:
        name: Name of the kind, `output` of a model card.
        output_name: Name of an artifact's output.
        signature: Name of the signature of a TFLite file.
        served_names, served_entries: Outputs of `serving_default`: the names of the entries, and the entries; empty if
            the entries have no names.
        raw: Meaning of the model's outputs, which `predictions` converts; empty if it does not change them.
        label_kind: Kind of the labels that a model of this kind learns, `label_kind` of `keras_vit.data.Source`.
        label_key: Entry of an example that contains the label.
        task, loss: Task and loss of a recipe for these labels.
        evaluator: Default evaluator.
        number, unit: Words for an entry, and for the unit of differences between predictions, with a leading space.
        limits: Limits of the verification for each of `PRECISIONS`.
        has_probabilities, has_values, has_masks, has_features: Whether the predictions are probabilities of classes,
            numbers in the unit of the data, the class of each pixel, or features.
        is_exclusive, is_independent: Whether an image has exactly one class, or any number of classes.
    """

    name = output_name = signature = "scores"
    served_names = served_entries = ""
    raw = ""
    label_kind: str | None = None
    label_key = "label"
    task, loss, evaluator = "masked_patch", "softmax", "classification"
    number, unit = "an output, relative to the largest output,", ""
    has_probabilities = is_exclusive = is_independent = has_values = has_masks = has_features = False
    # Relative to the largest number. Errors add up through the blocks, and no softmax dampens these errors.
    limits: tuple[Tolerance, ...] = tuple(map(Tolerance, (1e-4, 0.1, 0.02, 0.1, 0.25, 0.25)))
    text: Callable[[float], str] = staticmethod(percent)  # of an entry

    def predictions(
        self, raw: Any, values: Mapping[str, Any] | None = None, size: tuple[int, int] | None = None
    ) -> Any:
        """Convert raw outputs of any float dtype to predictions.

        Args:
            raw: Outputs of the model, `[B, k]` or `[B, h, w, k]`.
            values: Names and standardization of values, `Values.to_dict()`.
            size: `(H, W)` of masks.

        Returns:
            A tensor of Keras' backend: integers for masks, float32 otherwise.
        """
        import keras  # imports Keras' backend, which artifacts do not need

        return keras.ops.cast(raw, "float32")

    def parts(self, prediction: np.ndarray, names: Sequence[str], top_k: int = TOP_K) -> Parts:
        """Return the prediction for one image, `[k]` or `[H, W]`, as pairs of name and number.

        - Probabilities: the `top_k` most probable classes, in descending order.
        - Values: all values, in their order.
        - Mask: the classes in the mask and their shares of the pixels, in descending order.
        """
        if names and len(names) != len(prediction):
            raise ValueError(
                f"Expected a name for each of the {len(prediction)} outputs. Received: {len(names)} names, in the "
                "model card of the artifact."
            )
        return [(names[index], float(prediction[index])) for index in self.order(prediction, top_k)] if names else ()

    def order(self, numbers: np.ndarray, top_k: int = TOP_K) -> Sequence[int]:
        """Return the indices of the entries to show: the `top_k` largest numbers in descending order, or all values."""
        return np.argsort(-numbers, kind="stable")[:top_k].tolist()

    def uncertainty(self, prediction: np.ndarray, independent: bool) -> float:
        """Return the uncertainty of probabilities `[k]`, from 0 to 1; 0 for other predictions.

        The uncertainty is 1 minus the margin between the two most probable classes. For independent classes, the
        uncertainty is the maximum of `1 - |2p - 1|`, which belongs to the class whose probability is closest to 0.5.
        """
        if not self.has_probabilities:
            return 0.0
        if independent:
            return float(1 - np.abs(2 * prediction - 1).min())
        second, first = np.partition(prediction, -2)[-2:]
        return float(1 - (first - second))

    def as_text(self, parts: Parts) -> str:
        """Return a prediction as a text table with one line per class or value."""
        numbers = [self.text(number) for _, number in parts]
        name_width, width = max(len(name) for name, _ in parts), max(map(len, numbers))
        pairs = zip(parts, numbers, strict=True)
        return "".join(f"  {name:<{name_width}}  {number:>{width}}\n" for (name, _), number in pairs)

    def as_json(self, parts: Parts) -> dict[str, Any]:
        """Return a prediction as a JSON object."""
        return {"predictions": [{"label": label, "probability": probability} for label, probability in parts]}

    def differences(self, reference: Any, candidate: Any, values: Mapping[str, Any]) -> np.ndarray:
        """Return the differences between predictions `[N, ...]` of a model and an artifact, in the kind's unit."""
        reference = np.float64(reference)
        return np.abs(candidate - reference) / max(float(np.abs(reference).max()), 1e-6)


class Features(Output):
    """Features, the input of a head, which this model lacks."""

    name = output_name = signature = "features"
    has_features = True


class Classes(Output):
    """Base class of probabilities of classes."""

    output_name = "probabilities"
    signature = "classify"
    served_names, served_entries = "top_k_classes", "top_k_scores"
    raw = "logits"
    number = "a probability"
    has_probabilities = True
    # Float32 kernels differ in the order of sums; float16 weights have 11 significant bits and int8 weights about 7,
    # and errors add up through the blocks. For quantized artifacts, the agreement of the classes matters more than the
    # size of the difference, so the limit for the difference is loose.
    limits = (
        *(Tolerance(1e-4, 1.0), Tolerance(0.1, 0.98), Tolerance(0.02, 0.999), Tolerance(0.5, 0.99)),
        *(Tolerance(1.0, 0.9, accuracy_drop=0.01), Tolerance(1.0, 0.95, accuracy_drop=0.01)),
    )


class ExclusiveClasses(Classes):
    """Probabilities of classes of which each image has one."""

    name = loss = "softmax"
    label_kind, task = "class", "classification"
    is_exclusive = True

    def predictions(
        self, raw: Any, values: Mapping[str, Any] | None = None, size: tuple[int, int] | None = None
    ) -> Any:
        import keras

        return keras.ops.softmax(super().predictions(raw))


class IndependentClasses(Classes):
    """Probabilities of classes of which each image has any number."""

    name = loss = "sigmoid"
    label_kind, task = "classes", "multi_label"
    is_independent = True

    def predictions(
        self, raw: Any, values: Mapping[str, Any] | None = None, size: tuple[int, int] | None = None
    ) -> Any:
        import keras

        return keras.ops.sigmoid(super().predictions(raw))


class Numbers(Output):
    """Values in the unit of the data. The model's outputs are standardized."""

    name = output_name = signature = label_kind = "values"
    served_names, served_entries = "value_names", "values"
    raw = "standardized"
    task = evaluator = "regression"
    number, unit = "a value", " standard deviations"
    has_values = True
    text = staticmethod(as_number)

    def predictions(
        self, raw: Any, values: Mapping[str, Any] | None = None, size: tuple[int, int] | None = None
    ) -> Any:
        return Values.from_dict(values or {}).restore(super().predictions(raw))

    def order(self, numbers: np.ndarray, top_k: int = TOP_K) -> Sequence[int]:
        return range(len(numbers))

    def as_json(self, parts: Parts) -> dict[str, Any]:
        return {"values": {name: shortest(number) for name, number in parts}}

    def differences(self, reference: Any, candidate: Any, values: Mapping[str, Any]) -> np.ndarray:
        difference = np.abs(np.float64(candidate) - reference)
        # Adjacent float32 numbers count as equal: near a large mean, they are further apart than the tolerance.
        rounding = np.spacing(np.abs(np.float32(reference)))
        return np.maximum(difference - rounding, 0.0) / Values.from_dict(values).deviation


class Masks(Output):
    """Class of each pixel. The model's outputs are logits for each patch."""

    name = output_name = signature = label_kind = label_key = "mask"
    served_names, served_entries = "class_names", "mask_bytes"
    raw = "logits"
    task = evaluator = "segmentation"
    number, unit = "a mask", " of the pixels"
    has_masks = True
    # Minimum fraction of pixels with equal classes. On the border between two classes, their logits are equal and
    # rounding decides. The larger the rounding errors, the wider the strip of such pixels, for every model. All pixels
    # of a single image may be near a border.
    limits = tuple(Tolerance(1.0, share) for share in (0.999, 0.98, 0.995, 0.97, 0.9, 0.95))

    def predictions(
        self, raw: Any, values: Mapping[str, Any] | None = None, size: tuple[int, int] | None = None
    ) -> Any:
        """Return the class of each pixel, `[B, H, W]`, from the bilinearly resized logits.

        Masks are uint8, in which 255 marks ignored pixels, or int32 for more than 255 classes.
        """
        import keras

        from keras_vit.layers.interpolation import resize_logits

        assert size is not None  # always set for masks
        # Keras' argmax uses bit operations, which no converter supports.
        best = keras.ops.top_k(resize_logits(super().predictions(raw), size), 1)[1][..., 0]
        return keras.ops.cast(best, "uint8" if raw.shape[-1] <= 255 else "int32")

    def parts(self, prediction: np.ndarray, names: Sequence[str], top_k: int = TOP_K) -> Parts:
        shares = np.bincount(prediction.ravel(), minlength=len(names)) / prediction.size
        return super().parts(shares, names, int(np.count_nonzero(shares)))

    def as_json(self, parts: Parts) -> dict[str, Any]:
        return {"classes": [{"label": label, "share": share} for label, share in parts]}

    def differences(self, reference: Any, candidate: Any, values: Mapping[str, Any]) -> np.ndarray:
        """Return the fraction of different pixels of each mask. In a mask of another size, all pixels differ."""
        pairs = zip(reference, candidate, strict=True)
        return np.array([np.mean(one != other) if one.shape == np.shape(other) else 1.0 for one, other in pairs])


KINDS = (ExclusiveClasses(), IndependentClasses(), Numbers(), Masks(), Output(), Features())
NAMES = tuple(kind.name for kind in KINDS)
CLASSIFICATION = tuple(kind.name for kind in KINDS if kind.has_probabilities)
LABEL_KINDS = tuple(kind.label_kind for kind in KINDS if kind.label_kind)
_BY_NAME = {name: kind for kind in reversed(KINDS) for name in (kind.label_kind, kind.output_name, kind.name)}


def of(name: str | None) -> Output:
    """Return a kind by its name, the name of its output, or the kind of its labels. None means no labels."""
    if name not in _BY_NAME:
        raise ValueError(f"output must be one of {NAMES}. Received: output={name!r}.")
    return _BY_NAME[name]
