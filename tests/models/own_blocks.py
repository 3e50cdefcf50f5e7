"""Blocks and attention of a user, from a few lines to a whole block."""

import keras
from keras import ops

from keras_vit.layers import EncoderBlock


@keras.saving.register_keras_serializable(package="tests")
class ParallelBlock(EncoderBlock):
    """Block whose MLP and attention read the same tokens."""

    def call(self, x, training=False, **attention_arguments):
        y = self.norm_0(x)
        y = self.scale_0(self.attention(y, training=training, **attention_arguments)) + self.scale_1(self.mlp(y))
        return x + self.drop_path_0(y, training=training)


@keras.saving.register_keras_serializable(package="tests")
class PlainBlock(keras.layers.Layer):
    """Block without any layer of this package: attention, then MLP, without norms."""

    def __init__(self, attention, mlp, drop_path_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.attention, self.mlp = attention, mlp
        self.drop = keras.layers.Dropout(drop_path_rate, noise_shape=(None, 1, 1))

    def call(self, x, training=False):
        x = x + self.drop(self.attention(x), training=training)
        return x + self.drop(self.mlp(x), training=training)


@keras.saving.register_keras_serializable(package="tests")
class Average(keras.layers.Layer):
    """Attention with equal weights and a value projection."""

    def __init__(self, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads

    def build(self, shape):
        self.value = keras.layers.Dense(shape[-1], name="value", dtype=self.dtype_policy)
        self.value.build(shape)

    def call(self, x):
        return ops.zeros_like(x) + ops.mean(self.value(x), axis=1, keepdims=True)


@keras.saving.register_keras_serializable(package="tests")
def parallel(attention, mlp, **options):
    """Factory of a block."""
    return ParallelBlock(attention, mlp, layer_scale=0.5, **options)
