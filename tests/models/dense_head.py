"""A head of a user: one dense layer for each patch, as segmentation needs it."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="tests")
class DenseHead(keras.layers.Layer):
    """Batch norm and dense layer on the patches after one or several blocks: `[B, h, w, classes]`."""

    def __init__(self, classes, blocks=None, name="head", **kwargs):
        super().__init__(name=name, **kwargs)
        self.classes, self.blocks = classes, blocks
        self.norm = keras.layers.BatchNormalization(name="norm")
        self.dense = keras.layers.Dense(classes, name="dense")

    def call(self, tokens, grid, training=False):
        x = ops.concatenate(grid, axis=-1) if self.blocks else grid  # [B, h, w, D]
        return self.dense(self.norm(x, training=training))

    def get_config(self):
        return {**super().get_config(), "classes": self.classes, "blocks": self.blocks}
