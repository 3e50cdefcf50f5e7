"""Latency, throughput and memory of a predictor."""

import contextlib
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.inference.predictor import Predictor
from keras_vit.util.formatting import percent
from keras_vit.util.progress import track

PERCENTILES = (50, 95, 99)


def measure(predictor: Predictor, batch_size: int, calls: int, warmup: int = 5) -> dict[str, float]:
    """Measure the latency of a predictor on batches of noise. Preprocessing is not included.

    Returns `batch_size`, the latencies of a call `p50_ms`, `p95_ms` and `p99_ms`, and `images_per_second` over all
    calls after the `warmup`.
    """
    if calls < 1 or batch_size < 1:
        raise ValueError(f"Expected at least one call and one image. Received: calls={calls}, batch_size={batch_size}.")
    rng = np.random.default_rng(0)
    shape = (batch_size, *predictor.card.image_shape)
    pixels = predictor.card.input_dtype == "uint8"
    images = rng.integers(0, 256, shape, np.uint8) if pixels else rng.uniform(-1, 1, shape).astype(np.float32)
    times, what = [], f"{batch_size} images per call"
    for _ in track(range(warmup), f"{what}, warm-up", unit="calls"):
        predictor.predict(images)
    for _ in track(range(calls), what, unit="calls"):
        start = time.perf_counter()
        predictor.predict(images)
        times.append(time.perf_counter() - start)
    percentiles = {f"p{p}_ms": float(np.percentile(times, p)) * 1e3 for p in PERCENTILES}
    return {"batch_size": batch_size, **percentiles, "images_per_second": batch_size * calls / sum(times)}


def peak_memory() -> int:
    """Return the peak memory of this process in bytes, including TensorFlow's memory."""
    # On Linux, ru_maxrss includes the peak of the parent process. VmHWM does not.
    with contextlib.suppress(OSError, StopIteration), open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return measurements as a text table with one line per artifact and batch size."""
    lines = [("artifact", "precision", "agreement", "MB", "batch", "p50 ms", "p95 ms", "p99 ms", "images/s", "peak MB")]
    for row in rows:
        megabytes, peak = f"{row['bytes'] / 1e6:.1f}", f"{row['peak_memory'] / 1e6:.0f}"
        times = (f"{row[name]:.2f}" for name in ("p50_ms", "p95_ms", "p99_ms"))
        speed = f"{row['images_per_second']:.1f}"
        known = _agreement(row)
        lines.append((row["kind"], row["precision"], known, megabytes, str(row["batch_size"]), *times, speed, peak))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ""
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        cells[:2] = [cell.ljust(width) for cell, width in zip(line[:2], widths, strict=False)]
        text += "  ".join(cells) + "\n"
    return text


def _agreement(row: Mapping[str, Any]) -> str:
    return "" if row.get("agreement") is None else percent(row["agreement"], 2)


def fastest(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one line per batch size with the name of the artifact that has the lowest median latency."""
    lines = []
    for size in dict.fromkeys(row["batch_size"] for row in rows):
        best = min((row for row in rows if row["batch_size"] == size), key=lambda row: row["p50_ms"])
        agreement = _agreement(best)
        about = ", ".join([best["kind"], best["precision"], *([f"agreement {agreement}"] if agreement else [])])
        lines.append(f"Fastest with batch size {size}: {best['path']} ({about}), {best['p50_ms']:.2f} ms.\n")
    return "".join(lines)
