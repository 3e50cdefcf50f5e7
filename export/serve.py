"""Serve an exported SavedModel on this machine, for development.

    keras-vit serve --artifact=served/digits --port=8501

The paths are those of TF Serving's REST API, so that clients can be written and tested without it. There is no batching
and no access control: use the official server for production. A newer version in the directory is taken up while it
runs; one that cannot be loaded is logged and leaves the served version in place. SIGTERM and Ctrl-C end it after the
requests under way, at most --grace_seconds later. It needs pip install 'keras-vision-transformers[serving]'.
"""

import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from keras_vit import program

flags.DEFINE_string("artifact", None, "Directory with the versions of a SavedModel.")
flags.DEFINE_string("name", None, "Name of the model; the name of the directory if not given.")
flags.DEFINE_string("host", "localhost", "Address to listen at; 0.0.0.0 makes it reachable from other machines.")
flags.DEFINE_integer("port", 8501, "Port to listen at; 0 for any free one.", 0, 65535)
flags.DEFINE_float("poll_seconds", 5.0, "Interval between looks for a newer version.", 0.01)
flags.DEFINE_float("read_seconds", 30.0, "Time that a request may take to arrive.", 0.01)
flags.DEFINE_float("answer_seconds", 30.0, "Time that the answer to a request may take.", 0.01)
flags.DEFINE_float("grace_seconds", 30.0, "Time that requests under way get to finish after SIGTERM.", 1.0)

with program.imports(__name__):
    from keras_vit.tf_serving import server
    from keras_vit.tf_serving.served_model import ServedModel


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    if not options.artifact:
        raise ValueError("--artifact is missing: the directory that export.saved_model wrote versions into.")
    name = options.name or os.path.basename(os.path.normpath(options.artifact))
    limits = server.Limits(
        read_seconds=options.read_seconds,
        answer_seconds=options.answer_seconds,
        grace_seconds=options.grace_seconds,
    )
    model = ServedModel(name, options.artifact)
    try:
        rest_server = server.RestServer(model, options.host, options.port, limits)
    except OSError as error:
        raise ValueError(f"Cannot listen at --host={options.host} --port={options.port}: {error.strerror}.") from error

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())  # until the server handles them, and after
    threading.Thread(target=poll, args=(model, rest_server, stopped, options.poll_seconds), daemon=True).start()
    logging.info("Serving at http://%s:%d/v1/models/%s (for development)", options.host, rest_server.port, name)
    rest_server.run()
    stopped.set()
    if model.busy:
        logging.warning("Requests were still under way after %.0f s; they are dropped.", options.grace_seconds)
        logging.flush()
        os._exit(0)  # a thread that computes cannot be stopped, and Python would wait for it
    return 0


def poll(model: Any, rest_server: Any, stopped: threading.Event, seconds: float) -> None:
    """Look for newer versions until the server stops."""
    while not stopped.wait(seconds):
        model.reload()
    rest_server.stop()  # for a signal that came before the server handled signals


if __name__ == "__main__":
    program.run(main)
