"""Data sets of several large files, given by a folder, a pattern or braces."""

import glob
import os
import re
from collections.abc import Mapping, Sequence

from keras_vit.data.splits import NAMES
from keras_vit.util import file_io, source_specs

_NUMBERED = re.compile(r"(.*)-\d+-of-(\d+)[^/]*", re.DOTALL)  # also train-00000-of-00002-HASH.parquet


def by_split(location: str, extension: str) -> dict[str, list[str]]:
    """Return the sorted paths of local files by split.

    `location` is a folder, a pattern such as `/data/*.tar`, or a path with braces such as `/data/{00..15}.tar`. Words
    such as "train" and "val" in the name of a file, or of its folder in `location`, determine its split. Without such
    words, all files are the split "all".
    """
    location = location.removeprefix("file://")
    if file_io.is_remote(location):
        raise ValueError(
            f"{extension} files must be local. Received: {location!r}. Copy the files, or mount the bucket."
        )
    root = location.rstrip("/") if os.path.isdir(location) else os.path.dirname(location)
    if os.path.isdir(location):
        paths = [path for depth in ("", "*/") for path in glob.glob(f"{glob.escape(root)}/{depth}*{extension}")]
    else:
        paths = [path for name in source_specs.expanded(location) for path in glob.glob(name) or [name]]
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing or not paths:
        raise FileNotFoundError(f"There is no file {missing[0] if missing else f'{location}/*{extension}'!r}.")
    files: dict[str, list[str]] = {}
    for path in sorted(dict.fromkeys(paths)):
        words = re.split(r"[\W_]+", os.path.relpath(path, root).lower())
        files.setdefault(next((NAMES[word] for word in words if word in NAMES), "all"), []).append(path)
    if os.path.isdir(location):
        check_complete(location, files)
    return files


def check_complete(folder: str, files: Mapping[str, Sequence[str]]) -> None:
    """Raise a FileNotFoundError if a split of a folder has names such as `train-00000-of-00010`, and one is missing."""
    for split, paths in files.items():
        numbered = [match for path in paths if (match := _NUMBERED.fullmatch(path))]
        expected = sum(int(count) for _, count in {match.groups() for match in numbered})
        if len(numbered) != expected:
            raise FileNotFoundError(
                f"All files of the split {split!r} in {folder} must exist. Expected: {expected} files. Received: "
                f"{len(numbered)}."
            )
