"""Classify images.

    keras-vit predict --model=runs/digits image.jpg more/*.png
    keras-vit predict --model=runs/digits --json image.jpg
    keras-vit predict --model=ViT-B_16.npz --preprocess='value_range(-1, 1)' image.jpg

The model is the directory of a run, a `.keras` file, a checkpoint, or an artifact: a SavedModel, or a TFLite, ONNX or
OpenVINO file. An image that cannot be read is reported, the others are classified, and the exit code is 1, or 0 with
--on_bad_image=skip.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags, logging

from keras_vit import program
from keras_vit.program import common_flags

BATCH_SIZE = 16

common_flags.define_model_flags()
flags.DEFINE_integer("top_k", 5, "Number of labels per image.", 1)
common_flags.define_on_bad_image_flag("error")
common_flags.define_json_flag()

with program.imports(__name__):
    import numpy as np

    from keras_vit import _io
    from keras_vit.inference import open_predictor, preparation, probabilities


def main(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    if not options.model:
        raise ValueError("--model is missing: the directory of a run, a .keras file, or an exported artifact.")
    paths = _io.find_files(argv[1:])
    if not paths:
        raise ValueError("Name at least one image: keras-vit predict --model=DIR image.jpg ...")
    predictor = open_predictor(options.model, **common_flags.model_options())
    if not predictor.class_names:
        raise ValueError(f"--model must have classes. Received: --model={options.model}, which has none.")
    prepare = preparation.image_function(predictor.card.preprocess)
    write = write_json if flags.FLAGS.json else write_table

    failed = 0
    for start in range(0, len(paths), BATCH_SIZE):
        batch = paths[start : start + BATCH_SIZE]
        images, errors = read_all(batch, prepare)
        answers = iter(predictor.predict(np.stack(images)) if images else ())
        for path, error in zip(batch, errors, strict=True):
            top = [] if error else probabilities.top_labels(next(answers), predictor.class_names, flags.FLAGS.top_k)
            write(path, top, error)
        failed += sum(error is not None for error in errors)
    if failed:
        logging.warning("%d of %d images could not be read", failed, len(paths))
    return 1 if failed and flags.FLAGS.on_bad_image == "error" else 0


def read_all(paths: Sequence[str], prepare: Callable[[bytes], np.ndarray]) -> tuple[list[np.ndarray], list[str | None]]:
    """Return the preprocessed images of the readable files, and per file its error or None."""
    images: list[np.ndarray] = []
    errors: list[str | None] = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                images.append(prepare(file.read()))
            errors.append(None)
        except OSError as error:
            errors.append(error.strerror or str(error))
        except Exception as error:
            reason = preparation.unreadable(error)
            if reason is None:
                raise
            errors.append(reason)
    return images, errors


def write_table(path: str, top: Sequence[tuple[str, float]], error: str | None) -> None:
    if error:
        logging.error("%s: %s", path, error)
        return
    width = max(len(label) for label, _ in top)
    rows = "".join(f"  {label:<{width}}  {probability:8.3%}\n" for label, probability in top)
    sys.stdout.write(f"{path}\n{rows}")
    sys.stdout.flush()


def write_json(path: str, top: Sequence[tuple[str, float]], error: str | None) -> None:
    if error:
        logging.error("%s: %s", path, error)
        answer: dict[str, Any] = {"path": path, "error": error}
    else:
        predictions = [{"label": label, "probability": probability} for label, probability in top]
        answer = {"path": path, "predictions": predictions}
    sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    program.run(main)
