"""The error that all readers and writers of checkpoints raise."""


class CheckpointError(ValueError):
    """Raised if a checkpoint cannot be read, does not fit the model, or cannot be written.

    The message explains what to do.

    Example:
    >>> keras_vit.load_checkpoint(model, "images/cat.png")
    Traceback (most recent call last):
    keras_vit.checkpoints.errors.CheckpointError: images/cat.png is not a supported checkpoint ...
    """
