"""Exports a trained model as a TFLite file for devices, and checks that it answers as the model does.

    python -m export.tflite --model=runs/digits --output=digits.tflite
    python -m export.tflite --model=runs/digits --output=digits.tflite --precision=dynamic_int8 --input=uint8
    python -m export.tflite --model=runs/digits --output=digits.tflite --precision=int8 --max_accuracy_drop=0.005

The file holds built-in operators only and takes a fixed number of pictures. Its labels (OUTPUT.labels.txt) and its card
(OUTPUT.json) lie beside it. Where --output does not end in .tflite it is a directory, for model_PRECISION.tflite.
"""

import dataclasses
import os

from absl import flags, logging

from keras_vit import program, training
from keras_vit.data import preprocess as preprocessing
from keras_vit.serving import pictures, quantization, runs, tflite, verify

flags.DEFINE_string("model", None, "Directory of a run, or a .keras file in one.")
flags.DEFINE_string("output", None, "Where to write.")
flags.DEFINE_enum("precision", "float32", list(quantization.PRECISIONS), "How weights are stored.")
flags.DEFINE_integer("batch_size", 1, "Pictures in one call; a part of the file.", 1)
flags.DEFINE_enum("input", "float32", ["float32", "uint8"], "Whether the file takes prepared images or plain pixels.")
flags.DEFINE_bool("features", False, "Add a signature that gives the features before the head; not for integers.")
flags.DEFINE_list("calibration", [], "For integers: training pictures; some of the run's training data if not given.")
flags.DEFINE_integer("calibration_examples", 256, "For integers: how many pictures to find the ranges with.", 1)
flags.DEFINE_float("max_accuracy_drop", 0.01, "For integers: largest allowed loss of accuracy.")
flags.DEFINE_list("images", [], "Pictures to verify with; some of the run's data if not given.")
flags.DEFINE_integer("verify_examples", None, "How many pictures to verify with; 64, or 512 for integers.", 1)


def main(argv):
    del argv
    options = flags.FLAGS
    if not options.model or not options.output:
        raise ValueError("--model (the directory of a run) and --output (the .tflite file to write) are needed.")
    loaded = training.load_run(options.model)
    description = runs.describe(loaded)
    normalise = None
    if options.input == "uint8":
        # The application scales the picture, the file does the rest.
        normalise = preprocessing.device_function(description["preprocess"])
        description["preprocess"] = preprocessing.split(description["preprocess"])[0] or "decode"
    preprocess = runs.preprocess_function(description)
    integers = options.precision in quantization.CALIBRATED
    examples = runs.verification_pictures(loaded, options.verify_examples or (512 if integers else 64), options.images)
    calibration, tolerance = None, verify.tolerance_of(options.precision)
    if integers:
        split = loaded.config["recipe"]["data"]["train_split"]
        calibration = runs.verification_pictures(loaded, options.calibration_examples, options.calibration, split)
        calibration = pictures.keep_readable(calibration, preprocess)
        tolerance = dataclasses.replace(tolerance, accuracy_drop=options.max_accuracy_drop)
        if examples.labels is None:
            logging.warning("Without labels the accuracy is not measured, only how often the answers agree.")
    path = options.output
    if not path.endswith(".tflite"):
        path = os.path.join(path, f"model_{options.precision}.tflite")
    try:
        comparison = tflite.export_tflite(
            loaded.model,
            path,
            preprocess=preprocess,
            description=description,
            examples=pictures.keep_readable(examples, preprocess),
            precision=options.precision,
            batch_size=options.batch_size,
            normalise=normalise,
            calibration=calibration,
            tolerance=tolerance,
            features=options.features,
        )
    except (verify.VerificationError, tflite.ConversionError) as error:
        logging.error("%s", error)
        return 1
    logging.info("Verified: %s", comparison.summary())
    logging.info("%s (%.1f MB)", path, os.path.getsize(path) / 1e6)
    return 0


def run():
    program.run(main)


if __name__ == "__main__":
    run()
