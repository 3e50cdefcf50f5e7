"""Optional packages, which the extras in `setup.py` install."""

import contextlib
from collections.abc import Iterator


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'keras-vision-transformers[{extra}]'"


@contextlib.contextmanager
def needed(extra: str, text: str) -> Iterator[None]:
    """If an import in the block fails, raise an ImportError with `text` and the command that installs the extra."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{text}: {install(extra)}") from error
