"""Serve a model on this machine, for development.

    keras-vit serve --model=served/digits --port=8501
    keras-vit serve --model=ViT-B_16.npz --preprocess='value_range(-1, 1)'

The model is a directory with the versions of a SavedModel, or anything else that predicts: a run, a `.keras` file, a
checkpoint, or a TFLite, ONNX or OpenVINO file. The paths are those of TF Serving's REST API, so that clients can be
written and tested without it. There is no batching, no authentication and no encryption: use TensorFlow Serving for
production. The server listens at localhost; put a proxy in front of it before you open it to others with --host.

Of a SavedModel, a newer version in the directory is taken up while the server runs. The warm-up requests of a version
run before it is served. A version that cannot be loaded is logged, and the served version stays. SIGTERM and Ctrl-C
end the server after the requests under way, at most --grace_seconds later. The program needs
pip install 'keras-vision-transformers[serving]'.
"""

import os
import signal
import threading
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from keras_vit import program
from keras_vit.program import common_flags, exit_codes

common_flags.define_model_flags("Directory with versions of a SavedModel, run, .keras file, checkpoint or artifact.")
flags.DEFINE_string("name", None, "Name of the model in requests; that of the directory or file if not given.")
flags.DEFINE_string("host", "localhost", "Address to listen at; 0.0.0.0 makes it reachable from other machines.")
flags.DEFINE_integer("port", 8501, "Port to listen at; 0 for any free one.", 0, 65535)
flags.DEFINE_float("poll_seconds", 5.0, "Interval between looks for a newer version.", 0.01)
flags.DEFINE_float("read_seconds", 30.0, "Time that the head and the body of a request may each take to arrive.", 0.01)
flags.DEFINE_float("answer_seconds", 30.0, "Time that the answer to a request may take.", 0.01)
flags.DEFINE_float("grace_seconds", 30.0, "Time that requests under way get to finish after SIGTERM.", 1.0)

with program.imports(__name__):
    from keras_vit.inference import open_classifier
    from keras_vit.inference.formats import list_versions
    from keras_vit.tf_serving import server
    from keras_vit.tf_serving.served_model import ServedModel

STOP_SECONDS = 2.0  # that a version which is being loaded gets at the end


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    if not options.model:
        raise ValueError("--model is missing: the directory of an exported model, or another model.")
    name = options.name or name_of(options.model)
    limits = server.Limits(
        read_seconds=options.read_seconds,
        answer_seconds=options.answer_seconds,
        grace_seconds=options.grace_seconds,
    )
    model = open_model(name)
    try:
        rest_server = server.RestServer(model, options.host, options.port, limits)
    except OSError as error:
        raise ValueError(f"Cannot listen at --host={options.host} --port={options.port}: {error.strerror}.") from error

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())  # until the server handles them, and after
    looking = threading.Thread(target=poll, args=(model, rest_server, stopped, options.poll_seconds), daemon=True)
    looking.start()
    logging.info("Serving at http://%s:%d/v1/models/%s (for development)", options.host, rest_server.port, name)
    rest_server.run()
    stopped.set()
    looking.join(STOP_SECONDS)
    if model.busy:
        logging.warning("Requests were still under way after %.0f s; they are dropped.", options.grace_seconds)
    if model.busy or looking.is_alive():
        exit_codes.end(0)  # Python would wait for a thread that computes, and abort if a version is being loaded
    return 0


def name_of(path: str) -> str:
    """Return the name of a directory, or that of a file without its extension."""
    name = os.path.basename(os.path.normpath(path))
    return os.path.splitext(name)[0] if os.path.isfile(path) else name


def open_model(name: str) -> ServedModel:
    """Return the model to serve: the versions in a directory, or a classifier of another format."""
    options = flags.FLAGS
    path, given = options.model, (options.preprocess, options.labels, options.checkpoint)
    if list_versions(path) and given == (None, None, "last"):
        return ServedModel(name, path)
    classifier = open_classifier(path, preprocess=given[0], labels=given[1], checkpoint=given[2])
    classifier.prepare_for_many()
    return ServedModel(name, path, classifier)


def poll(model: Any, rest_server: Any, stopped: threading.Event, seconds: float) -> None:
    """Look for newer versions until the server stops, also after a look that failed."""
    known = set()
    while not stopped.wait(seconds):
        try:
            model.reload()
        except Exception as error:
            if str(error) not in known:
                logging.exception("The look for a newer version failed; it is repeated.")
            known.add(str(error))
    rest_server.stop()  # for a signal that came before the server handled signals


if __name__ == "__main__":
    program.run(main)
