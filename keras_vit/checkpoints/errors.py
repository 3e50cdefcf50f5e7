"""The error of every reader and writer of this package."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, does not fit, or cannot be written; the message says what to do."""
