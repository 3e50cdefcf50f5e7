"""Start-up costs of a fresh process: imports, building a model, loading a checkpoint: `startup.py SYSTEM WORK`.

Each step starts an interpreter, which measures its own time, so the start of Python is not included.
"""

import json
import os
import subprocess
import sys
import tempfile

from worker import CLASSES, Step, Work, serve

_IMPORT = """
import json, sys, time
start = time.perf_counter()
import {module}
seconds = time.perf_counter() - start
note = "TensorFlow imported" if "tensorflow" in sys.modules else "TensorFlow not imported"
print(json.dumps({{"seconds": seconds, "note": note}}))
"""

_BUILD = """
import json, time
import keras_vit
start = time.perf_counter()
model = keras_vit.create_model({model!r}, classes={classes})
model.trainable_variables[-1].numpy()
print(json.dumps({{"seconds": time.perf_counter() - start}}))
"""

_SAVE = """
import keras_vit
from keras_vit.checkpoints import save_checkpoint
save_checkpoint(keras_vit.create_model({model!r}, classes={classes}), {path!r})
"""

_LOAD = """
import json, os, time
import keras_vit
model = keras_vit.create_model({model!r}, classes={classes})
start = time.perf_counter()
keras_vit.load_checkpoint(model, {path!r})
seconds = time.perf_counter() - start
print(json.dumps({{"seconds": seconds, "note": "%.0f MB" % (os.path.getsize({path!r}) / 1e6)}}))
"""


def import_keras(work: Work) -> Step:
    return lambda: _in_a_process(_IMPORT.format(module="keras"))


def import_keras_vit(work: Work) -> Step:
    return lambda: _in_a_process(_IMPORT.format(module="keras_vit"))


def build(work: Work) -> Step:
    return lambda: _in_a_process(_BUILD.format(model=work.model, classes=CLASSES))


def load(work: Work) -> Step:
    """Write a checkpoint once, and return a step that loads the checkpoint into a built model."""
    folder = tempfile.TemporaryDirectory()
    values = {"model": work.model, "classes": 21_843, "path": os.path.join(folder.name, "weights.npz")}
    _in_a_process(_SAVE.format(**values))

    def step(folder=folder):
        return _in_a_process(_LOAD.format(**values))

    return step


def _in_a_process(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return {
        "peak_bytes": None,
        "library_bytes": None,
        **(json.loads(lines[-1]) if lines else {}),
    }  # of this process, which only waits


if __name__ == "__main__":
    serve({function.__name__: function for function in (import_keras, import_keras_vit, build, load)}, warm_up=0)
