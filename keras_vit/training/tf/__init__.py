"""Training on TensorFlow: each replica runs the step on its share of the batch; `tf.distribute` sums the gradients."""
