"""Compilation of training steps for TPUs and GPUs without the device: whether a step fits, and what limits it."""
