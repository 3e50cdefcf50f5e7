"""Filters of the patch embedding and similarity of the position embeddings."""

import keras
import numpy as np

from keras_vit.inspection import _inputs
from keras_vit.layers import AddPositionEmbs, PatchEncoder, StdConv2D
from keras_vit.layers.keras_private import all_layers
from keras_vit.util import checks


def embedding_filters(model: keras.Model, k: int = 28) -> np.ndarray:
    """Return the principal components of the filters that read the pixels.

    A Vision Transformer reads the pixels with its patch embedding. A hybrid or a BiT uses its first convolution.

    Args:
        model: A `VisionTransformer` or `BiTResNet`, or a model with one inside.
        k: Number of components. Fewer are returned if the filters have fewer dimensions.

    Returns:
        float32 `[k, height, width, channels]`: orthonormal components, the strongest first. The entry of largest
        magnitude in each component is positive.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), figure 7 (left)

    Example:
    >>> embedding_filters(model, k=7).shape  # components, height, width, channels
    (7, 8, 8, 3)
    """
    checks.positive_int("k", k)
    kernel = keras.ops.convert_to_numpy(_first_layer(model).kernel).astype(np.float64)  # [p, p, C, D]
    *shape, count = kernel.shape
    filters = kernel.reshape(-1, count).T  # [D, p*p*C]
    filters = filters - filters.mean(axis=0)
    components = np.linalg.svd(filters, full_matrices=False)[2][:k]  # [k, p*p*C]
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    return (components * np.sign(largest)).reshape(-1, *shape).astype(np.float32)


def _first_layer(model: keras.Model) -> keras.layers.Layer:
    layers = [layer for layer in all_layers(model) if isinstance(layer, (StdConv2D, PatchEncoder))]
    roots = [layer for layer in layers if layer.name == "conv_root"]
    embeddings = [layer for layer in layers if isinstance(layer, PatchEncoder)]
    if not roots and not embeddings:
        raise ValueError(f"No patch embedding and no root convolution was found in {model.name!r}.")
    return (roots or embeddings)[0]


def position_similarity(model: keras.Model, layer: int = 0) -> np.ndarray:
    """Return the cosine similarity of each pair of position embeddings.

    Args:
        model: A `VisionTransformer`, or a model with one inside.
        layer: Index of the encoder layer, for models with a table of position embeddings per layer.

    Returns:
        float32 `[h, w, h, w]`: entry `[y, x]` is the map of similarities between the patch in row y, column x and all
        patches.

    Raises:
        ValueError: If the model adds no position embeddings to its patches, or `layer` is out of range.

    References:
        - [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), figure 7 (middle) and appendix D.4

    Example:
    >>> position_similarity(model).shape
    (4, 4, 4, 4)
    """
    layers = [part for part in all_layers(model) if isinstance(part, AddPositionEmbs)]
    if not layers:
        raise ValueError(
            f"{model.name!r} adds no position embeddings to its patches: position_embedding='relative', 'rope2d' and "
            "'none' have no table of positions to compare."
        )
    if not 0 <= layer < len(layers):
        raise ValueError(
            f"`layer` must be in 0..{len(layers) - 1}, the layers with a position table. Received: layer={layer!r}."
        )
    table = _inputs.to_numpy(layers[layer].table())[0].astype(np.float64)  # [h, w, D]
    table = table / np.maximum(np.linalg.norm(table, axis=-1, keepdims=True), 1e-12)
    return np.einsum("hwd,yxd->hwyx", table, table).astype(np.float32)
