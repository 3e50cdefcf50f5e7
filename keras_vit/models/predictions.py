"""The predictions of a model: the kind of its outputs, and the names of its classes or values.

The model itself states them. Model cards and records of runs are derived from the model.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras

from keras_vit.models.base import ConfiguredModel
from keras_vit.outputs import CLASSIFICATION
from keras_vit.util.values import Values


class Predictions(NamedTuple):
    """Kind and names of a model's outputs.

    Attributes:
        output: Name of the kind, one of `keras_vit.outputs.NAMES`.
        class_names: Names of the classes; empty for a model without classes.
        values: Names and standardization of the values, or None for a model without values.
    """

    output: str
    class_names: tuple[str, ...] = ()
    values: Values | None = None


def predictions_of(model: keras.Model, labels: Sequence[str] = ()) -> Predictions:
    """Return what a model predicts. `labels` replace the names of its classes.

    Without names, the classes of a model of this package have numbers as names. The outputs of another last layer are
    scores or features, unless the layer has a softmax or sigmoid.

    Raises:
        ValueError: If `labels` do not fit the model.
    """
    *outer, last = endings(model)
    own = [inner for inner in outer if isinstance(inner, ConfiguredModel)]
    is_given = any(getattr(inner.config, "head", None) is not None for inner in own)
    names, values = labels or of_head(model, "class_names") or (), of_head(model, "values")
    activation, rank, count = output_activation(model), len(model.output_shape), model.output_shape[-1]
    is_dense = rank == 4 and bool(names or is_given)
    if not (rank == 2 or is_dense) or not all(getattr(inner.config, "include_top", True) for inner in own):
        if labels:
            raise ValueError(f"labels are for a model with a classification head. Received: {len(labels)} labels.")
        return Predictions("features")
    if values is not None:
        if labels or len(values.names) != count:
            raise ValueError(
                f"The model has {count} outputs, the values {', '.join(values.names)}, and no classes. Received: "
                f"labels={labels!r}."
            )
        return Predictions("values", values=values)
    if is_dense and count > 1:
        return Predictions("mask", checked_names(names, count))
    if is_dense or not (names or activation or (own and not is_given)):  # the meaning of the numbers is unknown
        is_linear = is_dense or is_given or isinstance(last, (keras.layers.Dense, keras.layers.EinsumDense))
        return Predictions("scores" if is_linear else "features")
    stated = activation or of_head(model, "prediction_activation")
    return Predictions(stated or ("sigmoid" if count == 1 else "softmax"), checked_names(names, count))


def checked_names(class_names: Sequence[object], num_classes: int) -> tuple[str, ...]:
    """Return class names as strings, by default numbers. Raise an error unless there is one name per class."""
    names = tuple(map(str, class_names or range(num_classes)))
    if len(names) != num_classes:
        raise ValueError(
            f"class_names must contain one name for each of the {num_classes} classes. Received: {len(names)}."
        )
    return names


def of_head(model: Any, name: str) -> Any:
    """Return an attribute of a model's head, such as `"class_names"`, or None. Supports clones and enclosing models."""
    found = getattr(model, name, None)
    if found is not None or not isinstance(model, keras.Model):
        return found
    same_outputs = (keras.layers.Activation, keras.layers.Average, keras.layers.Softmax)
    return of_head(next(layer for layer in reversed(model.layers) if not isinstance(layer, same_outputs)), name)


def endings(model: keras.Model) -> list[Any]:
    """Return a model and its last layer or operation. If the last layer is a model, continue with its last layer.

    Layers and operations that do not change values in inference, such as dropout, are skipped.
    """
    found: list[Any] = [model]
    while getattr(found[-1], "outputs", None):  # a functional or sequential model
        operations = found[-1].layers if isinstance(found[-1], keras.Sequential) else found[-1].operations
        found.append(next(operation for operation in reversed(operations) if not _changes_nothing(operation)))
    return found


def _changes_nothing(operation: Any) -> bool:
    is_linear = isinstance(operation, keras.layers.Activation) and activation_of(operation) == "linear"
    return is_linear or type(operation).__name__ in ("Cast", "Dropout", "Flatten", "Identity", "Reshape")


def activation_of(operation: Any) -> str:
    """Return the name of a layer's activation, or the name of an operation that is itself an activation."""
    function = getattr(operation, "activation", None) or operation
    name = getattr(function, "__name__", type(function).__name__)
    return name.lower().removesuffix("_v2")  # TensorFlow's softmax is called softmax_v2


def output_activation(model: keras.Model) -> str | None:
    """Return `"softmax"` or `"sigmoid"` if it is the model's last activation, else None."""
    name = activation_of(endings(model)[-1])
    return name if name in CLASSIFICATION else None
