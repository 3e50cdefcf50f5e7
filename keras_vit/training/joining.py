"""Reports of workers that do not come, while TensorFlow or JAX waits for them without a word."""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator

import keras
from absl import logging

from keras_vit._progress import duration
from keras_vit.training.errors import Interrupted

FIRST = 30.0  # seconds of waiting before the first report
EVERY = 60.0  # seconds between two reports
LIMIT = 600.0  # seconds of waiting before this process ends


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Report the workers of TF_CONFIG that cannot be reached, within the block, in which this process waits for them.

    After ten minutes the process ends with exit code 75, for a supervisor to start all workers again.
    """
    if "TF_CONFIG" not in os.environ:
        yield
        return
    joined = threading.Event()
    threading.Thread(target=_watch, args=(joined,), name="joining", daemon=True).start()
    try:
        yield
    finally:
        joined.set()


def _watch(joined: threading.Event) -> None:
    started, pause = time.monotonic(), FIRST
    while not joined.wait(pause):
        waited, pause = time.monotonic() - started, min(EVERY, LIMIT - FIRST)
        report = f"The other workers of TF_CONFIG are awaited for {duration(waited)}. {_unreachable()}"
        if waited >= LIMIT:
            logging.error("%s This process ends: start all workers again.", report)
            logging.flush()
            os._exit(Interrupted.exit_code)
        logging.warning("%s This process ends after %s.", report, duration(LIMIT))


def _unreachable() -> str:
    """Return a sentence with the workers that do not listen at their addresses."""
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    names = [(kind, index) for kind in ("chief", "worker") for index in range(len(cluster.get(kind, ())))]
    # On JAX, only the first worker listens.
    listening = names[:1] if keras.backend.backend() == "jax" else names
    missing = []
    for kind, index in listening:
        host, port = cluster[kind][index].rsplit(":", 1)
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError as error:
            missing.append(f"{kind} {index} at {host}:{port} ({error.strerror or error})")
    if missing:
        return f"Not reached: {', '.join(missing)}."
    return f"Reached: {len(listening)} of {len(names)}. Compare TF_CONFIG and the logs of all workers."
