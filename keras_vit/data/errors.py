"""Images that cannot be read: errors that name the file and the reason, and the list of skipped images."""

import contextlib
import re
from collections.abc import Iterator

from absl import logging

from keras_vit.util import checks

_MARK = "unreadable image"


class UnreadableImageError(ValueError):
    """An image that an input pipeline could not read.

    Args:
        origin: Path of the image, or a description of its record or array. All arguments are also attributes.
        reason: Why the image cannot be read.
        advice: What the user can do.

    Example:
    >>> error = UnreadableImageError("images/cat.jpg", "the file is empty")
    >>> error.origin, error.reason
    ('images/cat.jpg', 'the file is empty')
    """

    exit_code = 66  # exit code of a program that this error ends

    def __init__(self, origin: str, reason: str, advice: str = ""):
        super().__init__(f"{_MARK} {origin}: {reason}" + (f". {advice}" if advice else ""))
        self.origin, self.reason, self.advice = origin, reason, advice


class BadImageLog:
    """Number and list of skipped images.

    Attributes:
        reasons: Dictionary from the path of each skipped image to the reason.
        count: Number of times an image was skipped. A file counts again in each epoch.

    Example:
    >>> log = BadImageLog()
    >>> batches = train_batches(open_source("digits"), "resize(16)", batch_size=8, on_bad_image=log)
    >>> _ = next(iter(batches))
    >>> log.count, log.reasons
    (0, {})
    """

    def __init__(self):
        self.reasons: dict[str, str] = {}
        self.count = 0

    def add(self, origin: str, reason: str) -> None:
        """Count a skipped image. Log each image only once."""
        self.count += 1
        if origin not in self.reasons:
            self.reasons[origin] = reason
            logging.warning("Skipping %s: %s (%d such files so far)", origin, reason, len(self.reasons))


def log_of(on_bad_image: str | BadImageLog) -> BadImageLog | None:
    """Return the log of the skipped images, or None if unreadable images are errors."""
    if isinstance(on_bad_image, BadImageLog):
        return on_bad_image
    return BadImageLog() if checks.choice("on_bad_image", on_bad_image, ("error", "skip")) == "skip" else None


def skip(origin: str, reason: str, log: BadImageLog | None, advice: str = "") -> None:
    """Add an unreadable image to the log. Without a log, raise `UnreadableImageError`."""
    if log is None:
        raise UnreadableImageError(origin, reason, advice)
    log.add(origin, reason)


@contextlib.contextmanager
def image_errors(advice: str = "") -> Iterator[None]:
    """Replace TensorFlow's error for an unreadable image with `UnreadableImageError`.

    Use this context manager around code that iterates over `train_batches` or `eval_batches`, directly or through a
    distributed dataset. Other errors are not changed.

    Args:
        advice: What the user can do, for the error message.

    Example:
        with keras_vit.data.image_errors():
            for batch in batches:
                model.train_on_batch(batch["image"], batch["label"])
    """
    try:
        yield
    except Exception as error:
        found = _find(error)
        if found is None:
            raise
        raise UnreadableImageError(*found, advice) from error


def explain(error: Exception) -> str | None:
    """Return the image's path and the reason in one line, or None if the error is not about an unreadable image.

    Args:
        error: Error raised while iterating over batches.

    Example:
    >>> explain(ValueError("nothing about images")) is None
    True
    """
    found = _find(error)
    return str(UnreadableImageError(*found)) if found else None


def describe(error: Exception) -> str:
    """Return the readable part of a TensorFlow error in one line."""
    message = str(getattr(error, "message", error)).strip()
    if "Summarized data:" in message:  # a failed assertion outside of graphs
        message = message.split("Summarized data:", 1)[1]
        return " ".join(re.sub(r"b'(.*?)'", r"\1", message).split(" [Op:")[0].split())
    message = re.sub(r"^\{\{function_node.*?\}\}\s*", "", message, flags=re.DOTALL)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return re.sub(r"\s*\[Op:.*", "", lines[0]) if lines else type(error).__name__


def bad_image(origin: str, reason: str) -> str:
    """Return an error message for an unreadable image, in the form that `explain` recognizes."""
    return f"<{_MARK}|{origin}|{reason.replace('|', '/')}|>"


def _find(error: Exception) -> tuple[str, str] | None:
    message = str(getattr(error, "message", error))
    match = re.search(rf"<{_MARK}\|(.*?)\|([^|]*)\|>", message, re.DOTALL)
    return (match[1], match[2]) if match else None
