"""Training on TensorFlow: each replica runs the step on its share of the batch, and `tf.distribute` sums gradients."""
