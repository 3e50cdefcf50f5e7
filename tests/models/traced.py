"""Program that calls the library's functions in `tf.data.Dataset.map` and in a `tf.function`, as users do."""

import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.data import preprocess

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), np.uint8)

if __name__ == "__main__":
    model = keras_vit.VisionTransformer(8, 16, 1, 2, 16, image_size=16, classes=2, dropout_rate=0.5)
    model.input_normalization = (0.5, 0.25)
    pixels = tf.data.Dataset.from_tensor_slices(PIXELS).batch(2)
    for _ in pixels.map(keras_vit.preprocess_input).map(lambda images: model(images, training=True)):
        pass
    for _ in pixels.map(lambda images: keras_vit.preprocess_input(images, model)):
        pass
    for _ in pixels.map(preprocess.device_function("flip_lr|value_range(-1, 1)")):
        pass
    loss = tf.function(lambda images, labels: keras_vit.optim.cross_entropy(model(images), labels))
    loss(keras_vit.preprocess_input(PIXELS, model), keras_vit.optim.smooth_labels(np.eye(2)[[0, 1, 0, 1]], 0.1))
    tf.function(keras_vit.optim.create_schedule(keras_vit.recipe.Schedule(), 1.0, total_steps=4))(tf.constant(2))
