"""Replaces `train.main` in the tests of sweeps: reads the recipe and writes the files of a run, without training.

The learning rate decides: 1.0 fails and 2.0 diverges; 0.5 and 0.0001 train until they are asked to stop, the first time
they are started, and 0.0001 validates badly before. With 0.6 and 0.7, the best weights are those of step 1, and a
better rate is worse on the test split. Others reach an accuracy of the rate plus a hundredth of the seed.
"""

import json
import os
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
    file.write(f"{time.time_ns()}\n")
if rate in (1.0, 2.0) and not (workdir / "repaired").exists():
    sys.stderr.write("E1122 10:00:00.000000 1 main.py:1] The loss is nan in step 1.\n")
    sys.exit(70 if rate == 2.0 else 1)
lines = [
    {"step": 1, "loss": 2.0, "accuracy": 0.1},
    {"step": 1, "split": "test", "eval_accuracy": 0.05 + rate / 10, "eval_loss": 3.0, "examples": 9},
    {"step": 2, "split": "test", "eval_accuracy": rate + seed / 100, "eval_loss": 1.0, "examples": 9},
]
if rate in (0.6, 0.7):
    best = {"step": 1, "last_step": 2}
    lines += [{**best, "split": "val", "eval_accuracy": rate + 0.1, "eval_loss": 1.0}]
    lines += [{**best, "split": "test", "test_accuracy": 1 - rate, "test_loss": 1.0}]


def write(lines):
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if rate in (0.5, 0.0001) and not (workdir / "stopped").exists():
    signal.signal(signal.SIGTERM, lambda *_: ((workdir / "stopped").touch(), os._exit(75)))
    if rate == 0.0001:
        write(lines[:2])
    (workdir / "ready").write_text(str(os.getpid()))
    time.sleep(60)
    sys.exit(1)
write(lines)
(workdir / "model.keras").touch()
