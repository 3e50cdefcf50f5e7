"""Rounding of the kernels of all dense layers to 8 bits with GPTQ (https://arxiv.org/abs/2210.17323).

Rounding each weight to the nearest integer ignores that the inputs of a layer are correlated. GPTQ rounds the weights
of one input at a time and changes the remaining weights to compensate for the error. The bias compensates for the mean
of the remaining error.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit._progress import Progress
from keras_vit.exporting import weight_only
from keras_vit.exporting.inference_model import inference_model
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.sample_images import SampleImages
from keras_vit.layers import Dense, EinsumDense, EncoderBlock, MlpBlock, SelfAttention, SwiGLU, kernels
from keras_vit.models import layer_walk

IMAGES = 32  # to calibrate on
DAMPING = 0.01  # relative to the mean of the diagonal, as in the reference implementation
_BLOCK = 128  # number of inputs whose errors are applied to later inputs at once


def rounded(model: keras.Model, card: ModelCard, images: SampleImages) -> keras.Model:
    """Return a copy of a model for export whose kernels are rounded, calibrated on the first `IMAGES` images."""
    copy = inference_model(model, "float32")
    round_kernels(copy, card.prepare(images.contents[:IMAGES]))
    return copy


def round_kernels(model: keras.Model, images: np.ndarray) -> None:
    """Round the kernels of a model's dense layers to integers times a scale, calibrated on images `[B, ...]`.

    Each layer is rounded when the forward pass reaches it, so that its inputs come from rounded layers.
    `weight_only.quantize` later finds the same integers.
    """
    layers: list[Any] = layer_walk.layers_of(model)
    for layer in layers:
        if isinstance(layer, EncoderBlock):
            _fold_norms(layer)
    dense: list[Any] = [layer for layer in layers if isinstance(layer, (Dense, EinsumDense)) and _is_rounded(layer)]
    calls = [layer.call for layer in dense]
    progress = Progress("Rounding kernels", len(dense), unit="kernels")
    for layer in dense:  # as Keras' own GPTQ does
        layer.call = functools.partial(_round_and_call, layer, layer.call, progress)
    try:
        with kernels.plain(), progress:
            model(images, training=False)
    finally:
        for layer, call in zip(dense, calls, strict=True):
            layer.call = call


def _is_rounded(layer: Any) -> bool:
    return layer.quantization_mode is None and np.size(layer.kernel) >= weight_only.SMALLEST


def _round_and_call(layer: Any, call: Callable[..., Any], progress: Progress, x: Any, **arguments: Any) -> Any:
    layer.call = call
    shape = layer.flat_shape()
    rows = np.reshape(x, (-1, shape[0])).astype("float64")
    kernel = np.reshape(layer.kernel, shape)
    rounded = round_kernel(kernel, rows.T @ rows / len(rows))
    layer.kernel.assign(rounded.reshape(layer.kernel.shape))
    if layer.bias is not None:
        layer.bias.assign(layer.bias + (rows.mean(axis=0) @ (kernel - rounded)).reshape(layer.bias.shape))
    progress.add(1)
    return call(x, **arguments)


def round_kernel(kernel: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Round a kernel `[inputs, outputs]` for small errors of the outputs, given the second moments of the inputs.

    The largest weight of each output does not change, because it determines the output's scale.
    """
    order = np.argsort(-np.diagonal(moments), kind="stable")
    weights = np.asarray(kernel, "float64")[order]
    scales = weight_only.quantize(kernel, 1)[1].astype("float64")
    largest = (np.arange(len(kernel))[:, None] == np.abs(weights).argmax(axis=0)) & (weights != 0)
    damped = moments[np.ix_(order, order)]
    damped = damped + np.eye(len(kernel)) * max(DAMPING * np.diagonal(moments).mean(), 1e-12)
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T  # upper triangular; a row has the factors of later inputs
    rounded = np.empty_like(weights)
    for start in range(0, len(kernel), _BLOCK):
        block = slice(start, min(start + _BLOCK, len(kernel)))
        errors = np.empty_like(weights[block])
        for row in range(block.start, block.stop):
            integers = np.clip(np.rint(weights[row] / scales), -127, 127)
            integers = np.where(largest[row], np.copysign(127, weights[row]), integers)
            rounded[row] = integers * scales
            errors[row - start] = (weights[row] - rounded[row]) / factor[row, row]
            weights[row + 1 : block.stop] -= np.outer(factor[row, row + 1 : block.stop], errors[row - start])
        weights[block.stop :] -= factor[block, block.stop :].T @ errors
    return rounded[np.argsort(order)].astype("float32")


def _fold_norms(block: EncoderBlock) -> None:
    """Fold the scale of both norms into the kernels of the next layers, as TFLite's converter does."""
    attention, mlp = block.attention, block.mlp
    after: list[tuple[Any, list[Any]]] = []
    if isinstance(attention, SelfAttention):
        after.append((block.norm_0, [attention.query, attention.key, attention.value]))
    if isinstance(mlp, (MlpBlock, SwiGLU)):
        after.append((block.norm_1, [mlp.dense_0] if isinstance(mlp, MlpBlock) else [mlp.gate, mlp.up]))
    for norm, dense in after:
        scale = np.array(norm.scale)
        scale[np.abs(scale) < 1e-6] = 1  # too small for a divisor
        for weight in norm.weights:
            weight.assign(weight / scale)
        for layer in dense:
            layer.kernel.assign(layer.kernel * scale.reshape(-1, *[1] * (layer.kernel.ndim - 1)))
