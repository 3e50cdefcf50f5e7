"""Error of all readers and writers of checkpoints."""


class CheckpointError(ValueError):
    """Checkpoint that cannot be read, does not fit, or cannot be written. The message says what to do."""
