"""Copy of a model for export, under a chosen precision, that returns logits."""

from typing import Any

import keras


def inference_model(model: keras.Model, precision: str = "float32", **arguments: Any) -> keras.Model:
    """Rebuild a model for inference under another precision, with the same weights.

    A graph that was traced under `mixed_bfloat16` keeps its casts: TFLite cannot convert it, and a CPU without bfloat16
    runs it slowly. The copy is traced anew. It has no dropout, and it returns logits whatever the
    `classifier_activation` was.

    Args:
        model: A model of this package.
        precision: Precision of the copy, a dtype or the name of a Keras policy (`"mixed_bfloat16"`).
        **arguments: Arguments of the model's constructor that differ, without another number of weights.

    Returns:
        The copy.

    Raises:
        ValueError: If the Keras backend is not TensorFlow, or the model cannot be rebuilt from its configuration.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "TensorFlow writes artifacts, of models of every backend. Received: a model of KERAS_BACKEND="
            f"{keras.backend.backend()}. Save it as model.keras, and export that file with `keras-vit export`, or in a "
            "process with KERAS_BACKEND=tensorflow."
        )
    config = dict(model.get_config())
    if "dtype" not in config or not config.get("include_top", True):
        raise ValueError(
            "The exported model must be a keras_vit model with its head (include_top=True). "
            f"Received: {type(model).__name__} with the configuration keys {sorted(config)}."
        )
    if len(model.output_shape) != 2:
        raise ValueError(
            "The exported model must return one row of logits per image, [B, classes]. "
            f"Received: {model.output_shape}. Build it with a pooling."
        )
    changed = {"dtype": precision, "classifier_activation": None, "remat": "none"}
    rates = {name: 0.0 for name in config if name in ("dropout_rate", "attention_dropout_rate", "drop_path_rate")}
    config.update({name: value for name, value in changed.items() if name in config}, **rates, **arguments)
    copy = type(model).from_config(config)
    _copy_weights(model, copy)
    return copy


def _copy_weights(source: keras.Model, target: keras.Model) -> None:
    """Copy all weights between two models of the same architecture, by their paths."""
    sources, targets = _weights(source), _weights(target)
    if sources.keys() != targets.keys():
        different = sorted(sources.keys() ^ targets.keys())
        raise ValueError(f"The model and its copy must have the same weights. Only one of them has: {different[:5]}.")
    for path, weight in targets.items():
        if tuple(sources[path].shape) != tuple(weight.shape):
            raise ValueError(
                f"The weight {path} must have the shape {tuple(sources[path].shape)} in the copy. "
                f"Received: {tuple(weight.shape)}."
            )
        weight.assign(sources[path])


def _weights(model: keras.Model) -> dict[str, keras.Variable]:
    # States of random generators are integers, and the copy has none without dropout.
    return {w.path: w for w in model.weights if "float" in keras.backend.standardize_dtype(w.dtype)}
