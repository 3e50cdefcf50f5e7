"""List published weights: size, license, the path of each file, and where to put files by hand.

    keras-vit weights
    keras-vit weights ViT_S14
    keras-vit weights hf:facebook/dinov2-small ViT_B16:augreg --verify

Without arguments, the program lists all published weights. For the name of a model, it lists the weights of this model.
For the name of weights (MODEL:NAME, hf:OWNER/NAME, or a URL), it also shows the source, and where to put the files
on a machine without a network. Nothing is downloaded. --verify compares the downloaded files with the published hashes.
The exit code is 1 if a file is damaged.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from keras_vit import cli
from keras_vit.cli import common_flags

flags.DEFINE_bool("verify", False, "Compare the downloaded files with their hashes.")
common_flags.define_json_flag("text")

with cli.imports(__name__):
    from keras_vit import zoo
    from keras_vit.util import storage
    from keras_vit.zoo.variants import constructor_name, list_models

MODEL_FILES = "config.json, preprocessor_config.json and model.safetensors"
STATES = {True: "undamaged", False: "damaged", None: "not known: no hash is stated"}


def main(argv: Sequence[str]) -> int:
    options, models = flags.FLAGS, {name: name for name in list_models()}
    models |= {constructor_name(name): name for name in models}
    named = [name for name in argv[1:] if name not in models]
    listed = [entry for name in argv[1:] if name in models for entry in zoo.list_weights(models[name])]
    if not argv[1:]:
        listed = list(zoo.list_weights())
    rows = [describe(f"{constructor_name(entry.model)}:{entry.name}") for entry in listed]
    details = [describe(name) for name in named]
    if options.json:
        sys.stdout.write(json.dumps([*rows, *details], indent=2) + "\n")
    else:
        sys.stdout.write((table(rows) if rows else "") + "\n".join(map(as_text, details)))
    return int(any(row.get("verified") == STATES[False] for row in [*rows, *details]))


def describe(name: str) -> dict[str, Any]:
    """Return the facts about weights with this name."""
    found = zoo.parse_weights_name(name)
    if found.location is None or storage.is_bucket_url(found.location):
        raise ValueError(f"{name!r} is a path. Name published weights, such as ViT_S14:dinov2, or hf:OWNER/NAME.")
    same = (entry for entry in zoo.list_weights() if entry.path == found.location)
    entry, path = found.entry or next(same, None), zoo.find_local(found.location)
    is_of_hub = found.location.startswith("hf:")
    page = "https://huggingface.co/" + found.location[3:].partition("@")[0]
    row = {
        "name": name,
        "source": entry.url if entry else page if is_of_hub else f"https://storage.googleapis.com/{found.location}",
        "size": size_of(path) if path else f"{entry.size_mib} MiB" if entry and entry.size_mib else "",
        "license": entry.license if entry else "see the source",
        "path": path,
        "by_hand": f"{MODEL_FILES if is_of_hub else 'the file'} to {zoo.search_paths(found.location)[0]}",
    }
    return {**row, "verified": STATES[zoo.verify(path)]} if path and flags.FLAGS.verify else row


def size_of(path: str) -> str:
    """Return the size of a file, or the total size of the files in a directory."""
    files = [os.path.join(path, name) for name in os.listdir(path)] if os.path.isdir(path) else [path]
    return f"{sum(map(os.path.getsize, files)) / 2**20:.0f} MiB"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a text with a line for each row."""
    lines = [("weights", "size", "license", "path")]
    lines += [(row["name"], row["size"], row["license"], (row["path"] or "not here") + verified(row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "".join(f"{line.rstrip()}\n" for line in padded)


def verified(row: dict[str, Any]) -> str:
    return f" ({row['verified']})" if "verified" in row else ""


def as_text(row: dict[str, Any]) -> str:
    """Return a text with a line for each fact."""
    shown = {**row, "path": (row["path"] or "not here") + verified(row)}
    names = {"source": "source", "size": "size", "license": "license", "path": "path", "by_hand": "by hand"}
    return "".join(
        [f"{row['name']}\n", *(f"  {text:8} {shown[name]}\n" for name, text in names.items() if shown[name])]
    )


if __name__ == "__main__":
    cli.run(main)
