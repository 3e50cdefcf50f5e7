"""Serves an exported SavedModel on this machine, for development.

    python -m export.serve --artefact=served/digits --rest_port=8501 --grpc_port=8500

The REST paths and the gRPC service are those of TF Serving, so that clients can be written and tested without it.
There is no batching, no access control and no speed: use the official server for anything else. A newer version in
the directory is taken up while it runs. SIGTERM and Ctrl-C end it after the requests that are under way.
"""

import os
import signal
import threading

from absl import flags, logging

from keras_vit import program
from keras_vit.serving import rpc, server

flags.DEFINE_string("artefact", None, "Directory with the versions of a SavedModel.")
flags.DEFINE_string("name", None, "Name of the model; the name of the directory if not given.")
flags.DEFINE_string("host", "localhost", "Address to listen at; 0.0.0.0 makes it reachable from other machines.")
flags.DEFINE_integer("rest_port", 8501, "Port for REST; 0 for any free one.")
flags.DEFINE_integer("grpc_port", 8500, "Port for gRPC; 0 for any free one, -1 for none.")
flags.DEFINE_float("poll_seconds", 5.0, "How often to look for a newer version.", 0.01)


def main(argv):
    del argv
    options = flags.FLAGS
    if not options.artefact:
        raise ValueError("--artefact is missing: the directory that export.saved_model wrote versions into.")
    name = options.name or os.path.basename(os.path.normpath(options.artefact))
    model = server.ServedModel(name, options.artefact)

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    rest_server = server.RestServer(model, (options.host, options.rest_port))
    threading.Thread(target=rest_server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    grpc_server = None
    if options.grpc_port >= 0:
        grpc_server, grpc_port = rpc.start_server(model, options.grpc_port, options.host)
        logging.info("gRPC at %s:%d", options.host, grpc_port)
    logging.info("REST at http://%s:%d/v1/models/%s (for development)", options.host, rest_server.server_port, name)

    while not stop.wait(options.poll_seconds):
        try:
            model.reload()
        except (OSError, ValueError) as error:
            logging.error("The newest version cannot be loaded, version %d stays: %s", model.version, error)
    logging.info("Stopping after the requests that are under way")
    if grpc_server:
        grpc_server.stop(grace=30).wait()
    rest_server.shutdown()
    rest_server.server_close()
    return 0


def run():
    program.run(main)


if __name__ == "__main__":
    run()
