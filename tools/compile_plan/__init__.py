"""Training steps compiled for TPUs and GPUs that this machine lacks: what fits, and what limits the speed."""
