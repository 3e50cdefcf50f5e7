"""Serve a model on this machine, for development.

    keras-vit serve --model=served/digits --port=8501
    keras-vit serve --model=ViT-B_16.npz --preprocess='value_range(-1, 1)'

--model is a run, a `.keras` file, a checkpoint, a TFLite, ONNX or OpenVINO file, or the directory of an exported
SavedModel, whose newest version is served.

Open the URL in the log, http://localhost:8501/ by default, in a browser. On this page you can drop, paste, choose
or photograph an image, or try a test image of the run if its data are on this machine. The page shows the classes with
their probabilities, the values or the mask, and on request the parts of the image that the prediction relies on. The
server also has /healthz, /readyz, /metrics and the paths of TF Serving's REST API, so that you can write and test
clients without TF Serving.

This is a development server without batching, authentication or encryption. Use TensorFlow Serving for production. The
server listens on localhost; put a proxy in front of it before you open it to others with --host. The first response of
a model in bfloat16 takes more time and memory than later responses. A request may have at most 64 MiB, 400 images and
100 million pixels; docs/reference/server.md lists all bounds.

After SIGTERM or Ctrl-C, the server finishes the running requests within --grace_seconds, then ends. The program needs
pip install 'keras-vision-transformers[serving]'.
"""

import contextlib
import os
import signal
from collections.abc import Sequence

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags, exit_codes

EXAMPLES = 8
LOCAL = ("folder:", "manifest:", "digits")  # sources that are not downloaded

common_flags.define_model_flags("Directory of a SavedModel's versions, run, .keras file, checkpoint or artifact.")
flags.DEFINE_string("name", None, "Name of the model in requests; by default the name of the directory or file.")
flags.DEFINE_string("host", "localhost", "Network address to listen on; 0.0.0.0 is reachable from other machines.")
flags.DEFINE_integer("port", 8501, "Port to listen on; 0 for any free port.", 0, 65535)
flags.DEFINE_float("grace_seconds", 30.0, "Time in which running requests must finish after SIGTERM.", 1.0)

with cli.imports(__name__):
    from keras_vit.inference import ModelCard, open_predictor, sample_images

    from .serving import server
    from .serving.served_model import ServedModel


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    predictor = open_predictor(options.model, **common_flags.model_options())
    predictor.prepare_for_many()
    model = ServedModel(options.name or name_of(options.model), predictor, examples_of(predictor.card))
    limits = server.Limits(grace_seconds=options.grace_seconds)
    try:
        rest_server = server.RestServer(model, options.host, options.port, limits)
    except OSError as error:
        raise ValueError(
            f"Cannot listen on --host={options.host} --port={options.port}: {error.strerror}. Pass another --port."
        ) from error
    # uvicorn raises its signal again after it has ended. Python's own exit would wait for threads that still compute.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: exit_codes.end(0))
    url = f"http://{options.host}:{rest_server.port}"
    logging.info("Serving at %s/v1/models/%s, and a page to try it at %s/ (for development)", url, model.name, url)
    rest_server.run()
    return 0


def examples_of(card: ModelCard) -> dict[str, bytes]:
    """Return some of the evaluation images, or an empty dictionary if the data are not on this machine."""
    source = card.recipe_data.get("source", "")
    if source.startswith(LOCAL) and "://" not in source:
        with contextlib.suppress(OSError, ValueError):
            found = sample_images.for_model(card, EXAMPLES, on_bad_image="skip")
            return dict(zip(("/".join(name.split("/")[-2:]) for name in found.names), found.contents, strict=True))
    return {}


def name_of(path: str) -> str:
    """Return the name of a directory, or the name of a file without its extension."""
    name = os.path.basename(os.path.normpath(path))
    # A colon would end the name in a URL.
    return os.path.splitext(name)[0] if os.path.isfile(path) else name.replace(":", "-")


if __name__ == "__main__":
    cli.run(main)
