"""Names what is in pictures.

    python -m train.predict --model=runs/digits picture.jpg more/*.png
    python -m train.predict --model=runs/digits --json picture.jpg

--model is the directory of a run, a `.keras` file in one, or what was exported from it: a SavedModel, or a TFLite, ONNX
or OpenVINO file. A picture that cannot be read is reported and the others are still answered; the exit code is 1 then.
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

flags.DEFINE_string("model", None, "Directory of a run, .keras file, or exported artifact.")
flags.DEFINE_integer("top_k", probabilities.TOP_K, "How many labels to give for each picture.", 1)
flags.DEFINE_bool("json", False, "Write one JSON object a line instead of a table.")


def main(argv):
    if not flags.FLAGS.model:
        raise ValueError("--model is missing: the directory of a run, a .keras file, or an exported artifact.")
    paths = sample_images.find_files(argv[1:])
    if not paths:
        raise ValueError("Name at least one picture: python -m train.predict --model=DIR picture.jpg ...")
    classifier = open_classifier(flags.FLAGS.model)
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
        logging.error("%d of %d pictures could not be read", failed, len(paths))
    return 1 if failed else 0


def read_all(paths, preprocess):
    """Prepared images of the readable files, and for every file its error or None."""
    images, errors = [], []
    for path in paths:
        try:
            with open(path, "rb") as file:
                images.append(preprocess(tf.constant(file.read())).numpy())
            errors.append(None)
        except OSError as error:
            errors.append(error.strerror or str(error))
        except tf.errors.OpError as error:
            errors.append(f"not a picture that can be read: {data_errors.describe(error)}")
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
