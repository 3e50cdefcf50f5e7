"""List models and their published weights: accuracy, size, operations, measured speed, license.

    keras-vit models
    keras-vit models ViT_S16 ViT_B16
    keras-vit models --json

Pass the values of the first two columns as --model and --weights of `keras-vit train`, or to `keras_vit.create_model`.
"""

import functools
import importlib.resources
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from keras_vit import cli
from keras_vit.cli import common_flags

common_flags.define_json_flag("a table")

with cli.imports(__name__):
    from keras_vit import list_models, list_weights
    from keras_vit.training.planning import cost
    from keras_vit.util import formatting
    from keras_vit.zoo.published import PublishedWeights
    from keras_vit.zoo.variants import constructor_name, full_name

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


def main(argv: Sequence[str]) -> int:
    chosen = [full_name(name) for name in argv[1:]] or list_models()
    found = [row for name in chosen for row in rows(name)]
    if flags.FLAGS.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        sys.stdout.write(f"{table(found)}\n\n{caption()}\n")
    return 0


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


@functools.cache
def measured() -> dict[str, Any]:
    """Return the measured speeds, written by `python -m benchmarks.models`."""
    path = importlib.resources.files("keras_vit") / "zoo" / "assets" / "speeds.json"
    return json.loads(path.read_text(encoding="utf-8"))


def _row(model: str, entry: PublishedWeights | None) -> dict[str, Any]:
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
