"""Table of models in `docs/reference/model_table.md`, and its speeds. `python -m benchmarks.models` writes both."""

import json
import pathlib
from typing import Any

from benchmarks import host, records, tables
from benchmarks.interleaved import ROOT
from benchmarks.rows import ROWS
from keras_vit import list_models
from keras_vit.util import file_io
from train import models

SPEEDS = ROOT / "keras_vit" / "zoo" / "assets" / "speeds.json"
PAGE = ROOT / "docs" / "reference" / "model_table.md"


def speeds() -> dict[str, Any]:
    """Return images per second and peak memory of each model from the newest records, preferring records of batches.

    All records are from one processor: the processor with the most measured rows.
    """
    by_processor: dict[str, dict[str, Any]] = {}
    for record in records.read():
        by_processor.setdefault(host.kind(record["machine"]), {})[record["row"]] = record
    newest = max(by_processor.values(), key=len)
    names = [name for name in ROWS if name.startswith(("inference-", "one-image-")) and name in newest]
    names = [name for name in names if ROWS[name].work.get("precision", "float32") == "float32"]
    found: dict[str, Any] = {}
    for name in sorted(names, key=lambda name: -ROWS[name].work.get("batch", 1)):
        work, result = ROWS[name].work, newest[name]["results"][0]
        model = work.get("model", "ViT-B/16")
        speed = {"images_per_second": round(work.get("batch", 1) / result["seconds"], 1)}
        found.setdefault(model, {**speed, "gigabytes": round(result["peak_bytes"] / 1e9, 2), "row": name})
    machines = {newest[speed["row"]]["machine"] for speed in found.values()}
    return {"machine": "; ".join(sorted(machines)), "models": found}


def text() -> str:
    """Return the table with its caption, as on its page."""
    return f"{models.table([row for name in list_models() for row in models.rows(name)])}\n\n{models.caption()}"


def main(page: pathlib.Path = PAGE) -> None:
    file_io.write_text(SPEEDS, json.dumps(speeds()) + "\n")
    models.measured.cache_clear()
    tables.write_between(page, "models", text())


if __name__ == "__main__":
    main()
