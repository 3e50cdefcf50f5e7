"""Access to `tests/golden/`: outputs of the reference implementations on random weights and inputs."""

import json
import pathlib

import numpy as np

GOLDEN = pathlib.Path(__file__).parent / "golden"


def path(name):
    """The path of a golden file, e.g. `path("vit_gap.npz")` or `path("images/tall.jpg")`."""
    found = GOLDEN / name
    if not found.exists():
        raise FileNotFoundError(f"No golden file {found}.")
    return found


def load(name):
    """The arrays of `tests/golden/NAME.npz`; the entry "meta" holds its description as a dictionary."""
    with np.load(path(name if name.endswith(".npz") else f"{name}.npz"), allow_pickle=False) as file:
        data = {key: file[key] for key in file.files}
    data["meta"] = json.loads(str(data.pop("__meta__", "{}")))
    return data


def params(data):
    """The entries `params/...` of a loaded file, without the prefix."""
    return {key.removeprefix("params/"): value for key, value in data.items() if key.startswith("params/")}
