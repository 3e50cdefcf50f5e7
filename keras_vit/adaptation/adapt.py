"""Choice of the trained weights, written as `"lora(rank=8)"` in recipes and in Python."""

import re
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.layers import Dense, EinsumDense
from keras_vit.layers.base import BaseLayer, own_weights
from keras_vit.layers.keras_private import all_layers, stored_kernel
from keras_vit.models.base import ConfiguredModel, check_own
from keras_vit.models.variables import depths
from keras_vit.util import checks, literal_calls

DenseLayer = Dense | EinsumDense
Weights = list[keras.Variable]
Choice = Callable[[keras.Model], Weights]  # returns the weights to train, including moving statistics


def adapt(model: keras.Model, choice: str) -> None:
    """Choose which weights of a model are trained, and freeze all others.

    Call this function before `compile`. `fit` and training runs then train only the chosen weights. Saved models keep
    the choice. The moving statistics of frozen batch norms do not change. Kernels with LoRA are always frozen.

    Args:
        model: A model of this package, or a model that contains such a model.
        choice: One of
            - `"all"`: all weights;
            - `"head"`: the layer that computes the logits, and a batch norm before it (linear probing);
            - `"last(4)"`: the last 4 blocks, and all layers after them;
            - `"bias"`: all biases, and the head ([BitFit](https://arxiv.org/abs/2106.10199));
            - `"lora(rank=8, alpha=16, layers='query|value')"`: the head, and LoRA factors of this rank for dense layers
              in blocks ([LoRA](https://arxiv.org/abs/2106.09685)). `layers` is a regular expression to search for in
              the paths of the dense layers. The update is `alpha / rank` times the product of the factors. The values
              shown are the defaults of `"lora"`;
            - `"weights('norm|head')"`: the weights whose paths match a regular expression at any position.

    Raises:
        ValueError: If the choice is invalid, or the model has no such weights.

    Example:
    >>> model = keras_vit.VisionTransformer(8, 32, 2, 2, 64, image_size=32, classes=10)
    >>> keras_vit.adapt(model, "lora(rank=4, layers='query')")
    >>> [weight.path.rpartition("query/")[2] for weight in model.trainable_weights]
    ['lora_kernel_a', 'lora_kernel_b', 'lora_kernel_a', 'lora_kernel_b', 'head/kernel', 'head/bias']
    """
    check_model(model)
    chosen = {id(weight) for weight in parse_adapt(choice)(model)}
    model.trainable = True
    for layer in all_layers(model):  # parents come before their sublayers
        if layer.weights:
            layer.trainable = any(id(weight) in chosen for weight in layer.weights)
        for weight in own_weights(layer):
            weight.trainable = id(weight) in chosen
        if getattr(layer, "lora_enabled", False):
            stored_kernel(layer).trainable = False
    if not model.trainable_weights:
        raise ValueError(f"adapt={choice!r} leaves nothing to train in {model.name!r}.")
    model.train_function = model.test_function = model.predict_function = None  # compiled for the old weights


def merge_adapter(model: keras.Model) -> None:
    """Add the updates of LoRA to the kernels of a model, and remove the factors.

    The outputs stay the same up to rounding. Quantized kernels are quantized again. The merged model can be exported
    and saved with `save_checkpoint`. Compile the model again before you train it.

    Args:
        model: A model of this package, or a model that contains such a model. A model without LoRA does not change.

    Example:
    >>> model = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=2)
    >>> keras_vit.adapt(model, "lora")
    >>> keras_vit.merge_adapter(model)
    >>> path = keras_vit.save_checkpoint(model, "example/merged.npz")
    """
    check_model(model)
    for layer in lora_layers(model):
        layer.merge_lora()
    model.train_function = model.test_function = model.predict_function = None  # compiled for the old weights


def check_model(model: Any) -> None:
    """Raise an error unless `model` is a model of this package or contains such a model."""
    if not isinstance(model, keras.Model) or not _has_own(model):
        check_own(model)


def _has_own(layer: keras.layers.Layer) -> bool:
    return any(isinstance(part, (BaseLayer, ConfiguredModel)) for part in all_layers(layer))


def parse_adapt(choice: str) -> Choice:
    """Parse a choice of trained weights; see `adapt`.

    Raises:
        ValueError: If the choice or an argument is unknown. The message points to its position.

    Example:
    >>> parse_adapt("lora(8, layer='query')")
    Traceback (most recent call last):
    ValueError: Error in the choice of `adapt`, unknown argument 'layer' of 'lora':
      lora(8, layer='query')
              ^^^^^^^^^^^^^
    Did you mean 'layers'? Usage: lora(rank=8, alpha=16, layers='query|value').
    """
    calls = literal_calls.parse(choice, "choice of `adapt`", "lora(rank=8)")
    if len(calls) != 1:
        raise ValueError(f"adapt must be one of {', '.join(_CHOICES)}, with its arguments. Received: adapt={choice!r}")
    return calls[0].create(calls[0].function(_CHOICES, "choice"))[0]


def _all() -> Choice:
    return lambda model: model.weights


def _head() -> Choice:
    def choose(model: keras.Model) -> Weights:
        if not (found := _head_weights(model)):
            raise ValueError(f"adapt='head' needs a model with a head. Received: {model.name!r} without one.")
        return found

    return choose


def _last(blocks: int) -> Choice:
    checks.positive_int("blocks", blocks)

    def choose(model: keras.Model) -> Weights:
        found, deepest = depths(model)
        if blocks >= deepest:
            raise ValueError(
                f"adapt='last({blocks})' needs at least as many blocks. Received: {model.name!r} with {deepest - 1}."
            )
        return [weight for weight in model.weights if found[weight.path] >= deepest - blocks]

    return choose


def _bias() -> Choice:
    return lambda model: [*(weight for weight in model.weights if weight.name == "bias"), *_head_weights(model)]


def _lora(rank: int = 8, alpha: float = 16, layers: str = "query|value") -> Choice:
    checks.positive_int("rank", rank)
    checks.finite_number("alpha", alpha)
    pattern = _expression("layers", layers)

    def choose(model: keras.Model) -> Weights:
        blocks = [layer for layer in all_layers(model) if getattr(layer, "is_block", False)]
        possible = [layer for block in blocks for layer in dense_layers(block)]
        found = [layer for layer in possible if pattern.search(layer.path)]
        if not found:
            names = ", ".join(dict.fromkeys(layer.name for layer in possible))
            raise ValueError(
                f"layers={layers!r} matches no path of a dense layer in the blocks of {model.name!r}. "
                + (f"Names of these layers: {names}." if names else "It has no such layers.")
            )
        for layer in lora_layers(model):
            if layer not in found or (layer.lora_rank, layer.lora_alpha) != (rank, alpha):
                raise ValueError(
                    f"{layer.path} already has LoRA with rank={layer.lora_rank}, alpha={layer.lora_alpha}. Received: "
                    f"rank={rank}, alpha={alpha}, layers={layers!r}. Call keras_vit.merge_adapter first."
                )
        for layer in found:
            if not layer.lora_enabled:
                layer.enable_lora(rank, lora_alpha=alpha)
        factors = [factor for layer in found for factor in (layer.lora_kernel_a, layer.lora_kernel_b)]
        return [*factors, *_head_weights(model)]

    return choose


def _weights(pattern: str) -> Choice:
    expression = _expression("pattern", pattern)
    return lambda model: [weight for weight in model.weights if expression.search(weight.path)]


_CHOICES = {"all": _all, "head": _head, "last": _last, "bias": _bias, "lora": _lora, "weights": _weights}


def _expression(name: str, pattern: Any) -> re.Pattern:
    try:
        return re.compile(checks.instance(name, pattern, str, "'query|value'"))
    except re.error as error:
        raise ValueError(f"{name} must be a regular expression ({error}). Received: {name}={pattern!r}") from None


def dense_layers(layer: keras.layers.Layer) -> list[DenseLayer]:
    """Return the layers of a model or block that support LoRA."""
    return [part for part in all_layers(layer) if isinstance(part, (Dense, EinsumDense))]


def lora_layers(model: keras.Model) -> list[DenseLayer]:
    """Return the layers of a model that have LoRA."""
    return [layer for layer in dense_layers(model) if layer.lora_enabled]


def _head_weights(model: keras.Model) -> Weights:
    """Return the weights of the head and its batch norm, or of all layers after the last layer of this package."""
    if isinstance(model, ConfiguredModel):
        layers: list[Any] = [*(layer for layer in model.layers if layer.name == "head_norm"), *model._heads()]
    else:
        own = [index for index, layer in enumerate(model.layers) if _has_own(layer)]
        layers = model.layers[own[-1] + 1 :] if own else []
    return [weight for layer in layers for weight in layer.weights]
