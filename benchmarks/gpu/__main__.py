"""Check and measure the package on an accelerator. The program needs JAX, but no network, TensorFlow or data.

    python -m benchmarks.gpu --output=gpu
    python -m benchmarks.gpu --output=gpu --rows=correctness,training-ViT-B/16
    python -m benchmarks.gpu --output=/tmp/gpu --tiny         # the same code on a CPU, at tiny sizes

The program checks correctness first, then measures speed. Each row runs in separate processes, which end after four
minutes or at the end of --minutes and keep what they have measured until then. All rows share compiled programs, in
jax-cache in --output. A failure does not stop the other rows. The program updates gpu.json and gpu.md in --output
after every row. benchmarks/README.md lists the requirements.
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
from train.launching.files import GPU_MEMORY  # noqa: E402

flags.DEFINE_string("output", "gpu", "Directory of gpu.json and gpu.md.")
flags.DEFINE_list("rows", [], "Prefixes of the names of the rows to run; all rows if empty.")
flags.DEFINE_float("minutes", 14.0, "Time for all rows.", 0.0)
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
        results.append(run(row, end - time.monotonic(), os.path.abspath(options.output)))
        logging.info("%s: %s", row.name, results[-1].get("error") or results[-1].get("skipped") or "done")
        report.write(options.output, results, options.tiny)
    sys.stdout.write(report.markdown(results))
    return 1 if any("error" in result for result in results) else 0


def run(row: Row, seconds: float, output: str) -> dict:
    """Run a row in separate processes, and return `row`, `seconds`, and `skipped`, `error` or the results."""
    common = {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "JAX_COMPILATION_CACHE_DIR": os.path.join(output, "jax-cache"),
        "XLA_CLIENT_MEM_FRACTION": str(GPU_MEMORY),
    }
    result, start = {"row": row.name}, time.monotonic()
    for arguments in row.processes:
        left = min(row.limit, seconds - (time.monotonic() - start))
        if left < SHORTEST:
            return {**result, "skipped": "no time left"}
        environment = {**os.environ, **common, **row.environment}
        environment.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)  # the old name
        command = [sys.executable, "-m", "benchmarks.gpu.worker", row.worker, json.dumps(arguments)]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=left, check=False
            )
        except subprocess.TimeoutExpired as error:
            written = error.stdout or b""  # bytes, even with text=True
            measured = _last_line(written if isinstance(written, str) else written.decode())
            result |= measured or {"error": f"more than {left:.0f} s"}
            break
        if done.returncode != arguments.get("exit_code", 0):
            result["error"] = f"exit code {done.returncode}: {done.stderr[-1500:]}"
            break
        result |= _last_line(done.stdout)
    return {**result, "seconds": round(time.monotonic() - start, 1)}


def _last_line(output: str) -> dict:
    """Return the last complete line of JSON that a process printed, or an empty dictionary."""
    lines = [line for line in output.splitlines(keepends=True) if line.startswith("{") and line.endswith("}\n")]
    return json.loads(lines[-1]) if lines else {}


if __name__ == "__main__":
    app.run(main)
