"""Run a functional model layer by layer. The only module of this package that uses private parts of Keras' models."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import _checks
from keras_vit.layers import EncoderBlock, MAPHead
from keras_vit.models.base import ConfiguredModel
from keras_vit.models.inputs import check_shape


def walk(model: keras.Model, inputs: Any, call: Callable[..., Any]) -> Any:
    """Run a model's layers in the model's order, models inside of it included, and return its output.

    No layer is copied and none is connected anew: the model is afterwards as it was. `call(layer, *args, **kwargs)`
    runs one layer and returns its output, with `training=False`: augmentation layers train by default.

    Raises:
        ValueError: If a model with attention in it is neither functional nor sequential, so that its order is unknown.
    """

    def visit(layer, *args, **kwargs):
        if _is_walkable(layer):
            return walk(layer, args[0] if args else next(iter(kwargs.values())), call)
        if not isinstance(layer, (EncoderBlock, MAPHead)) and has_attention(layer):
            raise ValueError(_opaque(layer))
        if isinstance(layer, EncoderBlock) and (all_tokens := kwargs.pop("context", None)) is not None:
            args = (all_tokens,)  # the last block computes all tokens here, whatever the output depends on
        if isinstance(layer, keras.layers.Layer):  # the others are operations of `keras.ops`
            kwargs["training"] = False
        return call(layer, *args, **kwargs)

    if isinstance(model, keras.Sequential):
        for layer in model.layers:
            inputs = visit(layer, inputs)
        return inputs
    if not _is_walkable(model):
        raise ValueError(_opaque(model))
    flat = keras.tree.flatten(inputs)
    if len(flat) != len(model.inputs):
        raise ValueError(
            f"The model must have a single input. Received: {model.name!r}, which takes {len(model.inputs)} inputs. "
            "Pass the Vision Transformer inside of it, with the images that it takes."
        )
    flat = [ops.cast(ops.convert_to_tensor(x), wanted.dtype) for x, wanted in zip(flat, model.inputs, strict=True)]
    # What `keras.models.clone_model(call_function=...)` runs, there on symbolic tensors only.
    return model._run_through_graph(flat, call_fn=visit)


def _is_walkable(layer: Any) -> bool:
    return isinstance(layer, keras.Sequential) or (isinstance(layer, keras.Model) and hasattr(layer, "_nodes_by_depth"))


def layers_of(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return a layer or model and all layers inside of it, at any depth."""
    return list(layer._flatten_layers())


def has_attention(layer: Any) -> bool:
    """Whether there is an encoder block or an attention pooling in a layer or model."""
    if not isinstance(layer, keras.layers.Layer):
        return False
    return any(isinstance(part, (EncoderBlock, MAPHead)) for part in layers_of(layer))


def _opaque(layer: Any) -> str:
    inner = [part.name for part in layers_of(layer) if isinstance(part, ConfiguredModel) and part is not layer]
    hint = f"Pass the model inside of it, {inner[0]!r}, with images as {inner[0]!r} takes them." if inner else ""
    return (
        f"Layers can be followed through functional and sequential models. Received: {layer.name!r} of class "
        f"{type(layer).__name__}, whose own `call` decides what runs when. {hint}".rstrip()
    )


def check_model(model: Any, name: str = "model") -> None:
    """Raise a ValueError if something is not a model."""
    example = "open a file with keras.models.load_model, such as 'runs/digits/model.keras'"
    _checks.instance(name, model, keras.Model, example)


def check_images(model: keras.Model, images: Any, name: str = "model") -> np.ndarray:
    """Return a batch of images as the array that a model takes; refuse whole numbers where it expects [-1, 1]."""
    check_model(model, name)
    images = _checks.numbers_of("images", images, "a batch [B, height, width, channels]")
    if images.ndim != 4 or not len(images):
        raise ValueError(f"`images` must be a batch [B, height, width, channels]. Received: shape {images.shape}.")
    if isinstance(model, ConfiguredModel):
        if model.config.input_range is None and images.dtype.kind in "biu":
            raise ValueError(
                f"{type(model).__name__} takes floats in [-1, 1]. Received: images of type {images.dtype}. Prepare "
                "them as for the training, for example images / 127.5 - 1."
            )
        check_shape(model, images)
    return images


def batches(images: Any, batch_size: int) -> Iterator[np.ndarray]:
    """Yield `[b, height, width, channels]` with b up to `batch_size`.

    `images` is an array, or an iterable of batches or of images, which is read one element at a time.
    """
    for element in [images] if hasattr(images, "shape") else images:
        batch = np.asarray(element)
        batch = batch[None] if batch.ndim == 3 else batch
        if batch.ndim != 4:
            raise ValueError(
                "Each element of `images` must be an image [height, width, channels] or a batch of them. "
                f"Received: shape {batch.shape}."
            )
        for start in range(0, len(batch), batch_size):
            yield batch[start : start + batch_size]


def to_numpy(tensor: Any) -> np.ndarray:
    """Return a tensor as an array, float32 where it is of lower precision."""
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))
