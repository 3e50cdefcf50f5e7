"""List models and their weights: accuracy, size, operations, measured speed, license, and the paths of the files.

    keras-vit models
    keras-vit models ViT_S16
    keras-vit models hf:facebook/dinov2-small ViT_B16:augreg --verify

Pass the values of the first two columns as --model and --weights of `keras-vit train`, or to `keras_vit.create_model`.
For the name of a model, or of weights (MODEL:NAME, hf:OWNER/NAME, or a URL), the program also shows the URL, the size
and the path of the weights, and where to put the files on a machine without a network. Nothing is downloaded. --verify
compares the downloaded files with the published hashes. The exit code is 1 if a file is damaged.
"""

import functools
import importlib.resources
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from keras_vit import cli
from keras_vit.cli import common_flags

flags.DEFINE_bool("verify", False, "Compare the downloaded files with their hashes.")
common_flags.define_json_flag("a table")

with cli.imports(__name__):
    from keras_vit import zoo
    from keras_vit.util import formatting, storage
    from keras_vit.util.progress import track
    from keras_vit.zoo import PublishedWeights, list_weights
    from keras_vit.zoo.variants import constructor_name, list_models

COLUMNS = (
    "model",
    "weights",
    "pixels:",
    "top-1:",
    "parameters:",
    "GFLOPs:",
    "images/s:",
    "memory:",
    "license",
    "source",
)
# Papers of models without published weights in this package.
PAPERS = {
    "ViT-g/14": "arXiv:2106.04560",
    "ViT-G/14": "arXiv:2106.04560",
    "ViT-S+/16": "arXiv:2508.10104",
    "ViT-H+/16": "arXiv:2508.10104",
    "R26+ViT-B/32": "arXiv:2106.10270",
}


MODEL_FILES = "config.json, preprocessor_config.json and model.safetensors"
STATES = {True: "undamaged", False: "damaged", None: "unknown: the server states no hash"}


def main(argv: Sequence[str]) -> int:
    options, given = flags.FLAGS, argv[1:]
    models = {spelling: name for name in list_models() for spelling in (name, constructor_name(name))}
    chosen = [models[name] for name in given if name in models] if given else list_models()
    named = {name: describe(name) for name in given if name not in models}  # before Keras is imported
    found = [row for name in track(chosen, "Counting", unit="models") for row in rows(name)]
    published = [_name(row) for row in found if row["weights"]] if given or options.json or options.verify else []
    files = {name: describe(name) for name in published}
    if options.json:
        content = [{**row, **files.get(_name(row), {})} for row in found] + list(named.values())
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        shown = [row for row in (files | named).values() if given or "verified" in row]
        texts = [f"{table(found)}\n\n{caption()}\n"] if found else []
        sys.stdout.write("\n".join([*texts, *map(as_text, shown)]))
    return int(any(row.get("verified") == STATES[False] for row in (files | named).values()))


def rows(model: str) -> list[dict[str, Any]]:
    """Return a row per published checkpoint of a model, or one row if it has no published checkpoint."""
    return [_row(model, entry) for entry in list_weights(model) or [None]]


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table."""
    formats = {"top-1": "{}%", "parameters": "{:,}", "GFLOPs": "{:.1f}", "images/s": "{:.1f}", "memory": "{:.2f} GB"}
    names = [column.removesuffix(":") for column in COLUMNS]
    shown = (
        [None if row[name] is None else formats.get(name, "{}").format(row[name]) for name in names] for row in found
    )
    return formatting.markdown_table(COLUMNS, shown)


def caption() -> str:
    """Return the caption of the table, which explains its numbers."""
    return (
        "Top-1 is the published accuracy on ImageNet. Parameters and operations are counted for one image of this "
        "size, with the head of the weights; a multiply-add is two operations. Images/s and memory were measured at "
        "224 pixels and 1,000 classes in float32, with batches of 16 or 8 images, or one image for the S models, on "
        f"{measured()['machine']}. Memory is the peak of the process."
    )


def describe(name: str) -> dict[str, Any]:
    """Return the facts about the files of weights with this name."""
    found = zoo.parse_weights_name(name)
    if found.location is None or storage.is_bucket_url(found.location):
        raise ValueError(f"{name!r} is a path. Name a model, such as ViT_S14, or weights, such as hf:OWNER/NAME.")
    same = (entry for entry in zoo.list_weights() if entry.path == found.location)
    entry, path = found.entry or next(same, None), zoo.find_local(found.location)
    is_of_hub = found.location.startswith("hf:")
    page = "https://huggingface.co/" + found.location[3:].partition("@")[0]
    row = {
        "name": name,
        "url": entry.url if entry else page if is_of_hub else f"https://storage.googleapis.com/{found.location}",
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


def as_text(row: Mapping[str, Any]) -> str:
    """Return the facts about the files of weights as a text with a line for each fact."""
    verified = f" ({row['verified']})" if "verified" in row else ""
    shown = {**row, "path": (row["path"] or "not here") + verified}
    names = {"url": "URL", "size": "size", "license": "license", "path": "path", "by_hand": "by hand"}
    lines = (f"  {text:8} {shown[name]}\n" for name, text in names.items() if shown[name])
    return f"{row['name']}\n{''.join(lines)}"


@functools.cache
def measured() -> dict[str, Any]:
    """Return the measured speeds, written by `python -m benchmarks.models`."""
    path = importlib.resources.files("keras_vit") / "zoo" / "assets" / "speeds.json"
    return json.loads(path.read_text(encoding="utf-8"))


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['model']}:{row['weights']}"


def _row(model: str, entry: PublishedWeights | None) -> dict[str, Any]:
    from keras_vit.training.planning import cost  # imports Keras, which the files of weights do not need

    pixels, classes, arguments = (entry.resolution, entry.classes, entry.arguments) if entry else (224, 1000, {})
    head = {"classes": classes} if classes else {"include_top": False}
    counted = cost.of_variant(model, image_size=pixels, **head, **arguments)
    speed = measured()["models"].get(model, {}) if pixels == 224 else {}
    return {
        "model": constructor_name(model),
        "weights": entry and entry.name,
        "pixels": pixels,
        "top-1": entry and entry.accuracy,
        "parameters": counted.parameters,
        "GFLOPs": round(2 * counted.macs / 1e9, 1),
        "images/s": speed.get("images_per_second"),
        "memory": speed.get("gigabytes"),
        "license": entry and entry.license,
        "source": entry.source if entry else PAPERS.get(model),
    }


if __name__ == "__main__":
    cli.run(main)
