"""Training on JAX: one program over all devices; the compiler inserts the communication.

The step is written for the global batch; the sharding of its arrays (`Devices`) decides how it is divided.
"""
