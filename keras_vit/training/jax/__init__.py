"""The training loop on JAX: one program over all devices, in which the compiler places the communication.

Under TensorFlow each replica runs the step on its share and sums are asked for. Here the step is written for the global
batch; where its arrays live (`Devices`) decides how it is divided. Everything else is that of the parent package.
"""
