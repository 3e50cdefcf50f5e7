"""Removal of absolute paths from files that users share."""

import re
from collections.abc import Mapping
from typing import Any

_FOLDERS = re.compile(r"""(^|[:'"=\s(])/(?![/\s])(?:[^/'"]+/)*""")  # folders of an absolute path


def without_folders(value: Any, instead: str = "") -> Any:
    """Shorten each absolute path in a value to its last part, preceded by `instead`."""
    if isinstance(value, Mapping):
        return {key: without_folders(item, instead) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_folders(item, instead) for item in value]
    is_path = isinstance(value, str) and "/" in value
    return _FOLDERS.sub(rf"\g<1>{instead}", value.rstrip("/")) if is_path else value
