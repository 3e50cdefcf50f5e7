"""The present network of a run as a function of arrays, for evaluators that do not know TensorFlow."""

import keras
import numpy as np
import tensorflow as tf

from keras_vit.models.representation import representation
from keras_vit.training.state import TrainState


class Forward:
    """Features and scores of images, by the weights that an evaluation uses: moving averages where the run has them.

    Each worker divides the images among its own replicas. Several workers all compute the same.

    Args:
        state: of the run.
        strategy: of the run.
    """

    def __init__(self, state: TrainState, strategy: tf.distribute.Strategy):
        self.state, self.strategy = state, strategy
        self.replicas = len(strategy.experimental_local_results(strategy.run(lambda: tf.constant(0))))
        with strategy.scope():
            network = representation(state.model)

        def of_replica(images):
            weights = [(weight, average.read_value()) for weight, average in state.evaluated_weights()]
            with keras.StatelessScope(weights, initialize_variables=False):
                features, scores = network(images, training=False)
            return tf.cast(features, tf.float32), tf.cast(scores, tf.float32)

        self._run = tf.function(lambda images: strategy.run(of_replica, args=(images,)), autograph=False)

    def __call__(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns features `[B, D]` and scores `[B, classes]`.

        Args:
            images: float32 `[B, height, width, channels]`, in the range of the model; B is a multiple of the replicas.
        """
        if len(images) % self.replicas:
            raise ValueError(f"The images must divide among {self.replicas} replicas. Received: {len(images)} images.")
        parts = np.split(images, self.replicas)
        divided = self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group % self.replicas])
        )
        results = (self.strategy.experimental_local_results(part) for part in self._run(divided))
        features, scores = (np.concatenate([value.numpy() for value in values]) for values in results)
        return features, scores

    def features(self, images: np.ndarray) -> np.ndarray:
        """Returns what the head sees, `[B, D]`."""
        return self(images)[0]

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Returns the scores `[B, classes]`."""
        return self(images)[1]
