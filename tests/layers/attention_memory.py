"""Print the peak memory of a gradient of attention in chunks beyond that of a short sequence's, in MB.

python -m tests.layers.attention_memory CHUNK_SIZE
"""

import sys

import tensorflow as tf

from export.latency import peak_memory
from keras_vit import layers


def main(chunk_size):
    layer = layers.SelfAttention(2, chunk_size=chunk_size)
    layer.build((None, None, 8))

    @tf.function(input_signature=[tf.TensorSpec((1, None, 8))])
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, x)

    gradient(tf.zeros((1, 256, 8)))
    before = peak_memory()
    gradient(tf.zeros((1, 6000, 8)))
    print((peak_memory() - before) / 1e6)


if __name__ == "__main__":
    main(int(sys.argv[1]))
