"""Classify images.

    python -m train.predict --model=runs/digits image.jpg more/*.png
    python -m train.predict --model=runs/digits --json image.jpg
    python -m train.predict --model=ViT-B_16.npz --preprocess='value_range(-1, 1)' image.jpg

The model is the directory of a run, a `.keras` file, a checkpoint, or an artifact: a SavedModel, or a TFLite, ONNX or
OpenVINO file. An image that cannot be read is reported, the others are classified, and the exit code is 1.
"""

import json
import sys

import numpy as np
import tensorflow as tf
from absl import flags, logging

from keras_vit import program
from keras_vit.data import errors as data_errors
from keras_vit.inference import open_classifier, probabilities, sample_images

BATCH_SIZE = 16

flags.DEFINE_string("model", None, "Directory of a run, .keras file, checkpoint, or exported artifact.")
flags.DEFINE_string("preprocess", None, "Preprocessing string of a .keras file or checkpoint.")
flags.DEFINE_string("labels", None, "File with the class names of a .keras file or checkpoint, one per line.")
flags.DEFINE_integer("top_k", probabilities.TOP_K, "Number of labels per image.", 1)
flags.DEFINE_bool("json", False, "Write one JSON object per line instead of a table.")


def main(argv):
    if not flags.FLAGS.model:
        raise ValueError("--model is missing: the directory of a run, a .keras file, or an exported artifact.")
    paths = sample_images.find_files(argv[1:])
    if not paths:
        raise ValueError("Name at least one image: python -m train.predict --model=DIR image.jpg ...")
    classifier = open_classifier(flags.FLAGS.model, preprocess=flags.FLAGS.preprocess, labels=flags.FLAGS.labels)
    preprocess = classifier.card.preprocess_function()
    write = write_json if flags.FLAGS.json else write_table

    failed = 0
    for start in range(0, len(paths), BATCH_SIZE):
        batch = paths[start : start + BATCH_SIZE]
        images, errors = read_all(batch, preprocess)
        answers = iter(classifier.predict(np.stack(images)) if images else ())
        for path, error in zip(batch, errors, strict=True):
            top = [] if error else probabilities.top_labels(next(answers), classifier.class_names, flags.FLAGS.top_k)
            write(path, top, error)
        failed += sum(error is not None for error in errors)
    if failed:
        logging.error("%d of %d images could not be read", failed, len(paths))
    return 1 if failed else 0


def read_all(paths, preprocess):
    """Return the preprocessed images of the readable files, and per file its error or None."""
    images, errors = [], []
    for path in paths:
        try:
            with open(path, "rb") as file:
                images.append(preprocess(tf.constant(file.read())).numpy())
            errors.append(None)
        except OSError as error:
            errors.append(error.strerror or str(error))
        except tf.errors.OpError as error:
            errors.append(f"not a readable image: {data_errors.describe(error)}")
    return images, errors


def write_table(path, top, error):
    if error:
        logging.error("%s: %s", path, error)
        return
    width = max(len(label) for label, _ in top)
    rows = "".join(f"  {label:<{width}}  {probability:8.3%}\n" for label, probability in top)
    sys.stdout.write(f"{path}\n{rows}")
    sys.stdout.flush()


def write_json(path, top, error):
    if error:
        logging.error("%s: %s", path, error)
        answer = {"path": path, "error": error}
    else:
        predictions = [{"label": label, "probability": probability} for label, probability in top]
        answer = {"path": path, "predictions": predictions}
    sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def run():
    program.run(main)


if __name__ == "__main__":
    run()
