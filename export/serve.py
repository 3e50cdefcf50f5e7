"""Serve a model on this machine, for development.

    keras-vit serve --model=served/digits --port=8501
    keras-vit serve --model=ViT-B_16.npz --preprocess='value_range(-1, 1)'

The model is the directory of an exported SavedModel, whose newest version is served, or anything else that predicts: a
run, a `.keras` file, a checkpoint, or a TFLite, ONNX or OpenVINO file.

The address that the log shows, http://localhost:8501/ by default, is a page to drop, paste, choose or photograph an
image on, or to try a test image of the run, if the data are on this machine. It shows the classes with their
probabilities, the values or the mask, and on request the parts of the image that they rely on. All other paths are
those of TF Serving's REST API, so that clients can be written and tested without it, and /healthz, /readyz and
/metrics.

This is a development server: it does not batch, authenticate or encrypt. Use TensorFlow Serving for production. The
server listens at localhost; put a proxy in front of it before you open it to others with --host. The first response of
a model in bfloat16 takes longer and more memory than later ones. A request may have 64 MiB, 400 images and 100 million
pixels; docs/serving.md lists all bounds.

SIGTERM and Ctrl-C end the server after the requests under way, at most --grace_seconds later. The program needs
pip install 'keras-vision-transformers[serving]'.
"""

import contextlib
import os
import signal
from collections.abc import Sequence

from absl import flags, logging

from keras_vit import program
from keras_vit.program import common_flags, exit_codes

EXAMPLES = 8
LOCAL = ("folder:", "manifest:", "digits")  # data that are opened without a download

common_flags.define_model_flags("Directory with versions of a SavedModel, run, .keras file, checkpoint or artifact.")
flags.DEFINE_string("name", None, "Name of the model in requests; that of the directory or file if not given.")
flags.DEFINE_string("host", "localhost", "Address to listen at; 0.0.0.0 makes it reachable from other machines.")
flags.DEFINE_integer("port", 8501, "Port to listen at; 0 for any free one.", 0, 65535)
flags.DEFINE_float("grace_seconds", 30.0, "Time that requests under way get to finish after SIGTERM.", 1.0)

with program.imports(__name__):
    from keras_vit.inference import ModelCard, open_predictor, sample_images
    from keras_vit.tf_serving import server
    from keras_vit.tf_serving.served_model import ServedModel


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    if not options.model:
        raise ValueError("--model is missing: the directory of an exported model, or another model.")
    predictor = open_predictor(options.model, **common_flags.model_options())
    predictor.prepare_for_many()
    model = ServedModel(options.name or name_of(options.model), predictor, examples_of(predictor.card))
    limits = server.Limits(grace_seconds=options.grace_seconds)
    try:
        rest_server = server.RestServer(model, options.host, options.port, limits)
    except OSError as error:
        raise ValueError(
            f"Cannot listen at --host={options.host} --port={options.port}: {error.strerror}. Give another --port."
        ) from error
    # The server raises its signal again after its end. Python would wait for threads that still compute.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: exit_codes.end(0))
    address = f"http://{options.host}:{rest_server.port}"
    logging.info(
        "Serving at %s/v1/models/%s, and a page to try it at %s/ (for development)", address, model.name, address
    )
    rest_server.run()
    return 0


def examples_of(card: ModelCard) -> dict[str, bytes]:
    """Return some images of the data that the model was evaluated on; none if these are not on this machine."""
    source = card.recipe_data.get("source", "")
    if source.startswith(LOCAL) and "://" not in source:
        with contextlib.suppress(OSError, ValueError):
            found = sample_images.for_model(card, EXAMPLES, on_bad_image="skip")
            return dict(zip(("/".join(name.split("/")[-2:]) for name in found.names), found.contents, strict=True))
    return {}


def name_of(path: str) -> str:
    """Return the name of a directory, or that of a file without its extension."""
    name = os.path.basename(os.path.normpath(path))
    # A colon would end the name in an address.
    return os.path.splitext(name)[0] if os.path.isfile(path) else name.replace(":", "-")


if __name__ == "__main__":
    program.run(main)
