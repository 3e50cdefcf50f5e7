"""Predict the classes, values or masks of images with a server, over TensorFlow Serving's REST API.

    keras-vit client --url=http://localhost:8501 --name=digits *.jpg
    keras-vit client --url=http://localhost:8501 --name=shapes --output=masks *.jpg

If the model predicts masks, the program writes the same files to --output as `keras-vit predict`.
"""

import json
import sys
from collections.abc import Sequence

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags

flags.DEFINE_string("url", "http://localhost:8501", "URL of the server's REST API.")
flags.DEFINE_string("name", None, "Name of the model on the server.")
flags.DEFINE_float(
    "timeout", 60.0, "Seconds for each request. The program waits up to about 13 s for a server to start.", 0.001
)
flags.DEFINE_integer("batch_size", 8, "Images per request.", 1)
common_flags.define_output_flag("Folder for masks and overlays, for models that predict masks.")
common_flags.define_json_flag()

with cli.imports(__name__):
    from keras_vit import outputs
    from keras_vit.inference import masks
    from keras_vit.tf_serving import Client, RequestError
    from keras_vit.util import file_io, image_files


@cli.published("output")
def main(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    if not options.name:
        raise ValueError("--name is missing: the name of the model on the server.")
    paths, contents, failed = [], [], 0
    for path in image_files.find(argv[1:]):
        try:
            with open(path, "rb") as file:
                contents.append(file.read())
            paths.append(path)
        except OSError as error:
            logging.error("%s: %s", path, error.strerror or error)
            failed += 1
    if not paths and not failed:
        raise ValueError("Name at least one image: keras-vit client --url=URL --name=NAME image.jpg ...")
    unique = list(dict.fromkeys(paths))
    names = dict(zip(unique, masks.file_names(options.output, unique), strict=True)) if options.output else {}
    try:
        with Client(options.url, options.name, timeout=options.timeout, retries=6) as client:
            predictions = client.predict(contents, options.batch_size)
    except (OSError, RequestError) as error:  # ConnectionError and TimeoutError are subclasses of OSError
        starting = " A server that is still starting logs its URL when it is ready."
        logging.error("%s: %s.%s", options.url, error, starting if isinstance(error, ConnectionError) else "")
        return 1
    for index, (path, prediction) in enumerate(zip(paths, predictions, strict=True)):
        if not prediction.valid:
            logging.error("%s: %s", path, prediction.error or "the server cannot read this image")
            failed += 1
            continue
        if names:
            if prediction.mask is None:
                raise ValueError(
                    "--output requires a model that predicts masks. Received: a model of " + prediction.kind + "."
                )
            file_io.make_directory(options.output)
            masks.write_files(names[path], prediction.mask, masks.read_pixels(contents[index], "decode"))
        parts = list(zip(prediction.labels, prediction.scores, strict=True))
        kind = outputs.of(prediction.kind)
        if options.json:
            row = {"path": path, **kind.as_json(parts)}
            sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
        else:
            sys.stdout.write(f"{path}\n{kind.as_text(parts)}")
    return 1 if failed else 0


if __name__ == "__main__":
    cli.run(main)
