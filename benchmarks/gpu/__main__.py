"""Check and measure the package on an accelerator. The program needs JAX, but no network, TensorFlow or data.

    python -m benchmarks.gpu --output=gpu
    python -m benchmarks.gpu --output=gpu --rows=correctness,training-ViT-B/16
    python -m benchmarks.gpu --output=/tmp/gpu --tiny         # the same code on a CPU, at tiny sizes

The program checks correctness first, then measures speed. Each row runs in a separate process, whose time limit is the
rest of --minutes. A failure does not stop the other rows. The program updates gpu.json and gpu.md in --output after
every row. benchmarks/README.md lists the requirements.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags, logging

os.environ["KERAS_BACKEND"] = "jax"

from benchmarks.gpu import report  # noqa: E402
from benchmarks.gpu.rows import ROWS, TINY, Row  # noqa: E402

flags.DEFINE_string("output", "gpu", "Directory of gpu.json and gpu.md.")
flags.DEFINE_list("rows", [], "Prefixes of the names of the rows to run; all rows if empty.")
flags.DEFINE_float("minutes", 8.0, "Time for all rows.", 0.0)
flags.DEFINE_bool("tiny", False, "Whether to use tiny sizes, to try the program on a CPU.")

ROOT = Path(__file__).parents[2]
SHORTEST = 5.0  # minimum seconds to start a row


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    rows = TINY if options.tiny else ROWS
    chosen = [row for row in rows if not options.rows or row.name.startswith(tuple(options.rows))]
    if not chosen:
        raise app.UsageError(f"--rows names none of {', '.join(row.name for row in rows)}.")
    end, results = time.monotonic() + 60 * options.minutes, []
    for row in chosen:
        results.append(run(row, end - time.monotonic()))
        logging.info("%s: %s", row.name, results[-1].get("error") or results[-1].get("skipped") or "done")
        report.write(options.output, results, options.tiny)
    sys.stdout.write(report.markdown(results))
    return 1 if any("error" in result for result in results) else 0


def run(row: Row, seconds: float) -> dict:
    """Run a row in separate processes, and return `row`, `seconds`, and `skipped`, `error` or the results."""
    result, start = {"row": row.name}, time.monotonic()
    for arguments in row.processes:
        left = min(row.limit, seconds - (time.monotonic() - start))
        if left < SHORTEST:
            return {**result, "skipped": "no time left"}
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **row.environment}
        command = [sys.executable, "-m", "benchmarks.gpu.worker", row.worker, json.dumps(arguments)]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=left, check=False
            )
        except subprocess.TimeoutExpired:
            result["error"] = f"more than {left:.0f} s"
            break
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != arguments.get("exit_code", 0):
            result["error"] = f"exit code {done.returncode}: {done.stderr[-1500:]}"
            break
        result |= json.loads(lines[-1]) if lines else {}
    return {**result, "seconds": round(time.monotonic() - start, 1)}


if __name__ == "__main__":
    app.run(main)
