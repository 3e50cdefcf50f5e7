"""Export a trained model as a TFLite file for devices, and verify it on real images.

    keras-vit export-tflite --model=runs/digits --output=digits.tflite
    keras-vit export-tflite --model=runs/digits --output=digits.tflite --precision=dynamic_int8 --input=uint8
    keras-vit export-tflite --model=runs/digits --output=digits.tflite --precision=int8 --max_accuracy_drop=0.005

The file holds built-in operators only and takes a fixed number of images. Its labels (OUTPUT.labels.txt) and its model
card (OUTPUT.json) are written beside it. If --output does not end in .tflite it is a directory, for
model_PRECISION.tflite.
"""

import dataclasses
import os
from collections.abc import Sequence

from absl import flags, logging

from keras_vit import program
from keras_vit.program import common_flags

common_flags.define_export_flags(num_images=None)
common_flags.define_output_flag()
common_flags.define_precision_flag(["float32", "float16", "dynamic_int8", "int8", "int16x8"])
flags.DEFINE_integer("batch_size", 1, "Images per call; a part of the file.", 1)
flags.DEFINE_enum("input", "float32", ["float32", "uint8"], "Whether the file takes preprocessed images or pixels.")
flags.DEFINE_bool("features", False, "Add a signature that returns the features before the head; not for integers.")
flags.DEFINE_multi_string(
    "calibration",
    [],
    "For integers: training image or pattern, may be repeated; images of the run's data if not given.",
)
flags.DEFINE_integer("calibration_images", 256, "For integers: number of images to find the ranges with.", 1)
flags.DEFINE_float("max_accuracy_drop", 0.01, "For integers: largest allowed loss of accuracy.")

with program.imports(__name__, backend="tensorflow"):
    from keras_vit.exporting import command, quantization, tflite, verify
    from keras_vit.inference import ModelCard, sample_images


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    classifier = command.open_model()
    card = classifier.card
    is_calibrated = options.precision in quantization.CALIBRATED
    images = command.load_images(card, 512 if is_calibrated else 64)
    calibration, tolerance = None, verify.tolerance_of(options.precision)
    if is_calibrated:
        calibration = load_calibration(card, options)
        tolerance = dataclasses.replace(tolerance, accuracy_drop=options.max_accuracy_drop)
        if images.labels is None:
            logging.warning("The images have no labels: the agreement with the model is measured, not the accuracy.")
    path = options.output
    if not path.endswith(".tflite"):
        path = os.path.join(path, f"model_{options.precision}.tflite")

    def export():
        comparison = tflite.export_tflite(
            classifier.model,
            path,
            card=card,
            images=images,
            precision=options.precision,
            batch_size=options.batch_size,
            input=options.input,
            calibration=calibration,
            tolerance=tolerance,
            features=options.features,
        )
        return path, comparison

    return command.run_export(export)


def load_calibration(card: ModelCard, options: flags.FlagValues) -> sample_images.SampleImages | None:
    """Return the training images to find the ranges of activations with."""
    split = card.recipe_data.get("train_split", "train")
    return sample_images.for_model(
        card,
        options.calibration_images,
        patterns=options.calibration,
        split=split,
        on_bad_image=options.on_bad_image,
    )


if __name__ == "__main__":
    program.run(main)
