"""Functions that all programs share: reading, comparing and writing golden files."""

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
    """Return the arrays and the description of NAME.npz. Both are empty if the file does not exist yet."""
    path = GOLDEN / f"{name}.npz"
    if not path.exists():
        return {}, {}
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    return arrays, json.loads(str(arrays.pop("__meta__", "{}")))


def random(name: str, shape: Sequence[int], scale: float = 0.2) -> np.ndarray:
    """Return normally distributed random numbers, seeded by the name."""
    return np.random.default_rng(zlib.crc32(name.encode())).normal(0, scale, shape).astype(np.float32)


def tree(arrays: Arrays, prefix: str) -> dict[str, Any]:
    """Return nested dictionaries of the arrays whose names begin with a prefix."""
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
    """Return the arrays of nested dictionaries, named by their paths."""
    arrays = {}
    for name, value in nested.items():
        path = f"{prefix}{name}"
        arrays.update(flat(value, f"{path}/") if hasattr(value, "items") else {path: np.asarray(value)})
    return arrays


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of the installed packages."""
    return {name: importlib.metadata.version(name) for name in packages}


def largest_difference(first: Arrays, second: Arrays) -> float:
    """Return the maximum difference of arrays with the same name, relative to the maximum value of the array."""
    differences = [0.0]
    for name in sorted(set(first) & set(second)):
        one, other = np.asarray(first[name], np.float64), np.asarray(second[name], np.float64)
        if one.shape != other.shape:
            raise ValueError(f"{name} had shape {other.shape}. Received: {one.shape}")
        differences.append(float(np.max(np.abs(one - other), initial=0) / max(np.max(np.abs(other), initial=0), 1e-9)))
    return max(differences)


def main(files: Mapping[str, Callable[[str], tuple[Arrays, dict[str, Any]]]], packages: Sequence[str]) -> None:
    """Recompute golden files of a project, and compare or write them.

    Args:
        files: Functions by file name that return the arrays of the file and its description.
        packages: Packages whose versions are recorded in the description.
    """
    parser = argparse.ArgumentParser(description=f"Needs: pip install {' '.join(packages)}")
    parser.add_argument("names", nargs="*", default=list(files), metavar="NAME", help="names; all by default")
    parser.add_argument("--output", type=pathlib.Path, help="output directory; only compares if omitted")
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
