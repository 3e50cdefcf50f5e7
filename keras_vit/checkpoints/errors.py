"""Error of all readers and writers of checkpoints."""


class CheckpointError(ValueError):
    """Checkpoint that cannot be read, does not fit, or cannot be written. The message says what to do.

    Example:
    >>> keras_vit.load_checkpoint(model, "images/cat.png")
    Traceback (most recent call last):
    keras_vit.checkpoints.errors.CheckpointError: images/cat.png is no checkpoint of a known kind ...
    """
