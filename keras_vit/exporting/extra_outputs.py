"""Outputs of the exported graph besides probabilities: features and attention maps."""

from collections.abc import Callable

import keras
import tensorflow as tf

from keras_vit.inspection import attention, token_layout
from keras_vit.models.representation import head_input

HEAD = "head"


def features_function(model: keras.Model) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function from images `[B, H, W, C]` to the features of `models.representation`, float32 `[B, D]`."""
    if HEAD not in {layer.name for layer in model.layers}:
        raise ValueError(
            f"The model must have a layer {HEAD!r}, whose input are the features. Received: {model.name!r}."
        )
    body = keras.Model(model.inputs, head_input(model))
    return lambda images: tf.cast(body(images, training=False), tf.float32)


def attention_function(model: keras.Model) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function from images `[B, H, W, C]` to the attention map of each block, float32 `[B, blocks, h, w]`.

    A map is the mean over the heads of the class token's row, or of the patches' rows if the model has no class token.
    Weights on tokens that are no patches are left out, so that a map sums to less than 1.

    References:
        [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), appendix D.8
    """
    attention.require_attention(model)

    def maps(images):
        blocks = []

        def keep(layer, weights, recorder):
            if weights.shape[-2] != 1:  # [B, H, N, N]; attention pooling has a single row, of its probe
                blocks.append(tf.reduce_mean(tf.cast(weights, tf.float32), axis=1))  # [B, N, N]

        _, recorder = attention.run(model, images, keep)
        layout = recorder.layout()
        weights = tf.stack(blocks, axis=1)  # [B, L, N, N]
        if layout.reads == token_layout.TOKENS:
            rows = tf.gather(weights, list(layout.read_tokens), axis=2)
        else:
            rows = weights[:, :, layout.num_prefix_tokens :]
        row = tf.reduce_mean(rows, axis=2)[..., layout.num_prefix_tokens :]  # [B, L, h*w]
        return tf.reshape(row, [-1, len(blocks), *layout.grid])  # [B, L, h, w]

    return maps
