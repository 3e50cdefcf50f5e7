"""Training: the loop on TensorFlow and JAX, and complete runs from a data set and a few choices."""
