"""Results of `benchmarks.gpu` as JSON and Markdown."""

import os
from typing import Any

from keras_vit.util import file_io

_SHOWN = ("batch_size", "images_per_second", "utilization", "peak_bytes")


def write(directory: str, results: list[dict[str, Any]], tiny: bool) -> None:
    """Write gpu.json and gpu.md."""
    file_io.write_json(os.path.join(directory, "gpu.json"), {"tiny": tiny, "rows": results})
    file_io.write_text(os.path.join(directory, "gpu.md"), markdown(results))


def markdown(results: list[dict[str, Any]]) -> str:
    """Return a table of all rows, and the results of the correctness and attention rows."""
    lines = ["| row | batch | images/s | FLOP utilization | peak memory | result |", "|---|---|---|---|---|---|"]
    for result in results:
        batch, rate, used, peak = (result.get(name) for name in _SHOWN)
        cells = [
            result["row"],
            _text(batch),
            _text(rate, "{:,.0f}"),
            _text(used, "{:.1%}"),
            _text(peak and peak / 2**30, "{:.1f} GiB"),
            _outcome(result),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _text(value: Any, form: str = "{}") -> str:
    return "" if value is None else form.format(value)


def _outcome(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"failed: {' '.join(result['error'].split())[-300:]}"
    if "skipped" in result:
        return f"skipped: {result['skipped']}"
    if "errors" in result:
        return f"{result['device']}; largest error {max(result['errors'].values()):.1e}"
    if "ms_per_batch" in result and "batch_size" not in result:
        return ", ".join(f"batch {size}: {value} ms" for size, value in result["ms_per_batch"].items())
    if "ms_with_gradients" in result:
        rows = result["ms_with_gradients"].items()
        return "; ".join(f"{n} tokens: {', '.join(f'{k} {v} ms' for k, v in row.items())}" for n, row in rows)
    return f"done in {result.get('seconds', 0):.0f} s"
