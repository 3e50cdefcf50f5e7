"""Training on JAX: one program over all devices, into which the compiler inserts the communication.

The step is written for the global batch. The sharding of its arrays (`Devices`) determines the work of each device.
"""
