"""Errors of input pipelines as a user reads them: the file and the reason, without TensorFlow's graph around them."""

import contextlib
import re
from collections.abc import Iterator

_MARK = "unreadable image"


class UnreadableImageError(ValueError):
    """An image that an input pipeline could not read.

    Args:
        origin: Path of the image, or the record or array that holds it. An attribute, as are the others.
        reason: Why it cannot be read.
        advice: What the user may do.

    Example:
    >>> error = UnreadableImageError("images/cat.jpg", "the file is empty")
    >>> error.origin, error.reason
    ('images/cat.jpg', 'the file is empty')
    """

    exit_code = 66  # of a program that ends with this error

    def __init__(self, origin: str, reason: str, advice: str = ""):
        super().__init__(f"{_MARK} {origin}: {reason}" + (f". {advice}" if advice else ""))
        self.origin, self.reason, self.advice = origin, reason, advice


@contextlib.contextmanager
def image_errors(advice: str = "") -> Iterator[None]:
    """Raise `UnreadableImageError` in place of the error that TensorFlow raises for an image that cannot be read.

    Put it around the code that iterates over `train_batches` or `eval_batches`, directly or through a distributed
    dataset. Other errors pass.

    Args:
        advice: What the user may do, for the message.

    Example:
        with keras_vit.data.image_errors():
            for batch in batches:
                model.train_on_batch(batch["image"], batch["label"])
    """
    try:
        yield
    except UnreadableImageError:
        raise
    except Exception as error:
        found = _find(error)
        if found is None:
            raise
        raise UnreadableImageError(*found, advice) from error


def explain(error: Exception) -> str | None:
    """Return path and reason, in one line, if an error of an input pipeline is about an image; otherwise None.

    Args:
        error: Error that iterating over batches raised.

    Example:
    >>> explain(ValueError("nothing about images")) is None
    True
    """
    found = _find(error)
    return str(UnreadableImageError(*found)) if found else None


def describe(error: Exception) -> str:
    """Return the readable part of an error of TensorFlow, in one line."""
    message = str(getattr(error, "message", error)).strip()
    if "Summarized data:" in message:  # a failed assertion outside of graphs
        message = message.split("Summarized data:", 1)[1]
        return " ".join(re.sub(r"b'(.*?)'", r"\1", message).split(" [Op:")[0].split())
    message = re.sub(r"^\{\{function_node.*?\}\}\s*", "", message, flags=re.DOTALL)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return re.sub(r"\s*\[Op:.*", "", lines[0]) if lines else type(error).__name__


def bad_image(origin: str, reason: str) -> str:
    """Return the message of a pipeline that fails at an image, as `explain` reads it."""
    return f"<{_MARK}|{origin}|{reason.replace('|', '/')}|>"


def _find(error: Exception) -> tuple[str, str] | None:
    message = str(getattr(error, "message", error))
    match = re.search(rf"<{_MARK}\|(.*?)\|([^|]*)\|>", message, re.DOTALL)
    return (match[1], match[2]) if match else None
