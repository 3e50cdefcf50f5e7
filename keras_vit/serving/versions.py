"""Version directories as TF Serving watches them: `BASE/1`, `BASE/2`, ... each complete once it appears."""

import contextlib
import os

from keras_vit import _io


def list_versions(base: str) -> list[int]:
    """The versions under a directory, ascending. Names that are not plain numbers are no versions."""
    if not os.path.isdir(base):
        return []
    return sorted(int(n) for n in os.listdir(base) if n.isdecimal() and os.path.isdir(os.path.join(base, n)))


@contextlib.contextmanager
def new_version(base: str, version: int | None = None):
    """A directory to write a version into, which becomes visible under its number only when all went well.

    Args:
        base: The directory that holds the versions; made if missing.
        version: The number, at least 1; None for the next free one.

    Yields:
        A `Draft`: `path` is the temporary directory to fill. After the block `path` and `version` are the final ones.

    Raises:
        FileExistsError: If the version exists.
        ValueError: If the number is below 1.
    """
    if version is not None and version < 1:
        raise ValueError(f"version must be at least 1. Received: version={version}.")
    os.makedirs(base, exist_ok=True)
    _refuse_existing(base, version)
    with _io.draft_directory(os.path.join(base, "version")) as path:
        draft = Draft(path)
        yield draft
        draft.path, draft.version = _publish(draft.path, base, version)


class Draft:
    """A version in the making.

    Attributes:
        path: Its directory.
        version: Its number, None until it is published.
    """

    def __init__(self, path: str):
        self.path = path
        self.version = None


def _publish(path, base, version):
    while True:
        number = version or max((int(name) for name in os.listdir(base) if name.isdecimal()), default=0) + 1
        _refuse_existing(base, number)
        target = os.path.join(base, str(number))
        try:
            _io.publish_directory(path, target)
            return target, number
        except FileExistsError:
            if version is not None:  # otherwise another export has just taken the number
                raise


def _refuse_existing(base, version):
    if version is not None and os.path.lexists(os.path.join(base, str(version))):
        raise FileExistsError(
            f"Version {version} exists in {base!r} and is never overwritten. "
            "Leave the version out to take the next free one."
        )
