"""What the programs share: reading a golden file, comparing what was computed again, and writing it."""

import argparse
import importlib.metadata
import json
import pathlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden"
Arrays = dict[str, np.ndarray]


def read(name: str) -> tuple[Arrays, dict[str, Any]]:
    """Return the arrays of NAME.npz and its description; nothing for a file that is still to be made."""
    path = GOLDEN / f"{name}.npz"
    if not path.exists():
        return {}, {}
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    return arrays, json.loads(str(arrays.pop("__meta__", "{}")))


def random(name: str, shape: Sequence[int], scale: float = 0.2) -> np.ndarray:
    """Return normal random numbers that the name decides."""
    return np.random.default_rng(zlib.crc32(name.encode())).normal(0, scale, shape).astype(np.float32)


def tree(arrays: Arrays, prefix: str) -> dict[str, Any]:
    """Return the arrays whose names begin with a prefix as nested dictionaries."""
    nested: dict[str, Any] = {}
    for name, value in arrays.items():
        if name.startswith(prefix):
            *folders, last = name.removeprefix(prefix).split("/")
            branch = nested
            for folder in folders:
                branch = branch.setdefault(folder, {})
            branch[last] = value
    return nested


def flat(nested: dict[str, Any], prefix: str) -> Arrays:
    """Return nested dictionaries as arrays with paths for names."""
    arrays = {}
    for name, value in nested.items():
        path = f"{prefix}{name}"
        arrays.update(flat(value, f"{path}/") if hasattr(value, "items") else {path: np.asarray(value)})
    return arrays


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of the installed packages."""
    return {name: importlib.metadata.version(name) for name in packages}


def largest_difference(first: Arrays, second: Arrays) -> float:
    """Return the largest difference of arrays with the same names, relative to the largest value of each."""
    differences = [0.0]
    for name in sorted(set(first) & set(second)):
        one, other = np.asarray(first[name], np.float64), np.asarray(second[name], np.float64)
        if one.shape != other.shape:
            raise ValueError(f"{name} had shape {other.shape}. Received: {one.shape}")
        differences.append(float(np.max(np.abs(one - other), initial=0) / max(np.max(np.abs(other), initial=0), 1e-9)))
    return max(differences)


def main(files: Mapping[str, Callable[[str], tuple[Arrays, dict[str, Any]]]], packages: Sequence[str]) -> None:
    """Compute files of a project again.

    Args:
        files: For each name, a function that returns everything that the file holds, and its description.
        packages: The packages whose versions the description states.
    """
    parser = argparse.ArgumentParser(description=f"Needs: pip install {' '.join(packages)}")
    parser.add_argument("names", nargs="*", default=list(files), metavar="NAME", help="names; all by default")
    parser.add_argument("--output", type=pathlib.Path, help="directory to write to; only compares if not given")
    flags = parser.parse_args()
    for name in flags.names:
        arrays, meta = files[name](name)
        stored, _ = read(name)
        difference = largest_difference(arrays, stored)
        print(f"{name}: largest relative difference {difference:.1e}, {len(set(stored) - set(arrays))} arrays missing")
        if flags.output:
            flags.output.mkdir(parents=True, exist_ok=True)
            description = json.dumps({**meta, "versions": versions(packages)})
            content: dict[str, Any] = {**arrays, "__meta__": np.array(description)}
            np.savez_compressed(flags.output / f"{name}.npz", **content)
