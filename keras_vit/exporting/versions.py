"""Version directories as TF Serving watches them: `BASE/1`, `BASE/2`, ... each complete once it appears."""

import contextlib
import os
from collections.abc import Iterator

from keras_vit import _io


class Draft:
    """Version that is being written. `path` is its directory; `version` its number, None until it is published."""

    def __init__(self, path: str):
        self.path = path
        self.version: int | None = None


@contextlib.contextmanager
def new_version(base: str, version: int | None = None) -> Iterator[Draft]:
    """Write a version that becomes visible under its number only when it is complete."""
    if version is not None and version < 1:
        raise ValueError(f"version must be at least 1. Received: version={version}.")
    os.makedirs(base, exist_ok=True)
    _refuse_existing(base, version)
    with _io.draft_directory(os.path.join(base, "version")) as path:
        draft = Draft(path)
        yield draft
        draft.path, draft.version = _publish(draft.path, base, version)


def _publish(path: str, base: str, version: int | None) -> tuple[str, int]:
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


def _refuse_existing(base: str, version: int | None) -> None:
    if version is not None and os.path.lexists(os.path.join(base, str(version))):
        raise FileExistsError(
            f"Version {version} exists in {base!r} and is never overwritten. "
            "Leave the version out to take the next free one."
        )
