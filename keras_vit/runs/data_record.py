"""Record of a run's data in `data.json`: the location of the data and fingerprints of both splits."""

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from keras_vit.data import Source, fingerprint
from keras_vit.util import file_io, source_specs

FILE = "data.json"


def describe(source: str, *splits: Source) -> dict[str, Any]:
    """Return the description of a source and of the opened splits."""
    return {
        "source": source_specs.absolute(source),
        "splits": {split.split: fingerprint.fingerprint(split) for split in splits},
    }


def check_processes(description: Mapping[str, Any], mean: Callable[[float], float]) -> None:
    """Raise a ValueError if the processes of a run have opened other data, or the same data in another order.

    Every process must call this function. `mean` returns the mean of a number over all processes.
    """
    digest = hashlib.sha256("".join(entry["digest"] for entry in description["splits"].values()).encode()).hexdigest()
    numbers = [int(digest[start : start + 3], 16) for start in (0, 3, 6, 9)]  # small: their sum is exact in float32
    differs = [mean(number) for number in numbers] != numbers
    if mean(differs) > 0:
        raise ValueError(
            f"All processes must read the same data in the same order. Received: other files of "
            f"{description['source']} in at least one process, or indices that were written while the processes "
            "started. Start the run again."
        )


def write(directory: str, description: Mapping[str, Any]) -> None:
    """Write a description into a run directory, unless it is unchanged."""
    if read(directory) != description:
        file_io.write_json(os.path.join(directory, FILE), description)


def read(directory: str) -> dict[str, Any]:
    """Return the description in a run directory, or an empty dictionary if it does not exist."""
    path = os.path.join(directory, FILE)
    if not os.path.exists(path):
        return {}
    content = file_io.read_json(path)
    splits = content.get("splits")
    whole = isinstance(splits, dict) and all(map(fingerprint.is_fingerprint, splits.values()))
    if not whole or not isinstance(content.get("source"), str):
        raise ValueError(
            f"{path} must contain 'source', a str, and 'splits', fingerprints by name. Delete it to record the data "
            "again."
        )
    return content


def locate(directory: str, source: str) -> str:
    """Return the source of a run in a form that opens from the current working directory.

    A path in the recipe may be relative to the working directory at the start of the run.
    """
    recorded, here = read(directory).get("source"), source_specs.absolute(source)
    if recorded is None:
        return source
    if recorded != here and source_specs.exists(recorded):
        return recorded
    if not source_specs.exists(source):
        raise FileNotFoundError(
            f"The data of the run {directory} are neither at {recorded!r} nor, relative to this directory, at "
            f"{source!r}. Name the data set with --data, or images with --images."
        )
    if recorded != here:
        logging.warning("The data of the run are no longer at %s; using %s.", recorded, here)
    return source


def changes(directory: str, source: Source) -> list[str]:
    """Describe the changes of a split since the run recorded it. The list is empty if the run did not record it."""
    before = read(directory).get("splits", {})
    if source.split not in before:
        return []
    return fingerprint.changes(before, {source.split: fingerprint.fingerprint(source)})
