"""Stands in for `train.main` in the tests of sweeps: reads the recipe and writes the files of a run, without training.

The learning rate decides: 1.0 fails, 0.5 stops before the end when asked to. Others reach an accuracy of the rate plus
a hundredth of the seed.
"""

import json
import pathlib
import re
import signal
import sys
import time

options = dict(argument.lstrip("-").split("=", 1) for argument in sys.argv[1:])
text = pathlib.Path(options["config"]).read_text()
rate, seed = (float(re.search(rf"{name}=([\d.e-]+)", text)[1]) for name in ("learning_rate", "seed"))
workdir = pathlib.Path(options["workdir"])
with (workdir / "starts").open("a") as file:
    file.write("started\n")
if rate == 1.0 and not (workdir / "repaired").exists():
    sys.exit("E1122 10:00:00.000000 1 main.py:1] The loss is nan in step 1.")
if rate == 0.5 and not (workdir / "stopped").exists():
    (workdir / "stopped").touch()

    def stop(*_):
        sys.exit(75)

    signal.signal(signal.SIGTERM, stop)
    (workdir / "ready").touch()
    time.sleep(60)
    sys.exit(1)
lines = [
    {"step": 1, "loss": 2.0, "accuracy": 0.1},
    {"step": 1, "split": "test", "eval_accuracy": 0.0, "eval_loss": 3.0, "examples": 9},
    {"step": 2, "split": "test", "eval_accuracy": rate + seed / 100, "eval_loss": 1.0, "examples": 9},
]
(workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
(workdir / "model.keras").touch()
