"""Export a trained model to SavedModel, TFLite, ONNX or OpenVINO, and verify it on real images.

    keras-vit export --model=runs/digits --output=served/digits
    keras-vit export --model=runs/digits --output=digits.tflite --precision=float16 --input_dtype=uint8
    keras-vit export --model=ViT-B_16.npz --preprocess='value_range(-1, 1)' --images='*.jpg' --output=vit.onnx

The extension of --output chooses the format: .tflite, .onnx or .xml (OpenVINO). Without an extension, --output is the
directory of a SavedModel. With --format, an --output without an extension is a directory in which the program writes
model.onnx, model.xml or model_PRECISION.tflite.

A SavedModel is written as the next free version; the first is served/digits/1. A version appears under its number only
when it is complete and verified, and no version is ever overwritten. The other formats are files with their model card
(OUTPUT.json) next to them. ONNX and OpenVINO need
pip install 'keras-vision-transformers[onnx]' or '[openvino]'.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags
from keras_vit.inference import formats  # a table that imports neither Keras nor NumPy

NUM_IMAGES = 64

common_flags.define_export_flags(NUM_IMAGES)
common_flags.define_output_flag()
flags.DEFINE_enum("format", None, list(formats.FORMATS), "Format; by default chosen by the extension of --output.")
flags.DEFINE_enum(
    "precision",
    "float32",
    list(formats.PRECISIONS),
    "Precision of the artifact. "
    + "; ".join(f"{name}: {', '.join(format.precisions)}" for name, format in formats.FORMATS.items())
    + ".",
)
flags.DEFINE_integer("batch_size", None, "Files: images per call; by default 1 for TFLite, else any number.", 1)
# Flags of a SavedModel.
flags.DEFINE_integer("version", None, "SavedModel: version number; by default the next free number.", 1)
flags.DEFINE_integer("top_k", 5, "SavedModel with classes: number of labels in a response.", 1)
flags.DEFINE_integer("max_pixels", 50_000_000, "SavedModel: images with more pixels are rejected before decoding.", 1)
flags.DEFINE_multi_enum(
    "signature",
    ["features"],
    ["features", "attention"],
    "SavedModel: additional signature; may be repeated. Features are the input of the head.",
)
flags.DEFINE_list(
    "batch_sizes",
    ["1", "4", "8"],
    "SavedModel: batch sizes that the server runs to warm up; empty for none.",
)
# Flags of a TFLite file.
flags.DEFINE_enum(
    "input_dtype", "float32", ["float32", "uint8"], "TFLite: float32 for preprocessed images, uint8 for pixels."
)
flags.DEFINE_bool("features", False, "TFLite: add a signature that returns the head's input; not for int8, int16x8.")
flags.DEFINE_multi_string(
    "calibration",
    [],
    "TFLite int8, int16x8: training image or pattern; may be repeated. By default, images of the run's data.",
)
flags.DEFINE_integer("calibration_images", 256, "TFLite int8, int16x8: number of images for calibration.", 1)
flags.DEFINE_float(
    "max_accuracy_drop", 0.01, "TFLite: largest allowed loss of accuracy with classes; the default: int8 and int16x8."
)

with cli.imports(__name__, backend="tensorflow"):
    from keras_vit.cli import trained_model
    from keras_vit.exporting import ConversionError, VerificationError, quantization, verify
    from keras_vit.exporting.verified_export import write, writer_of
    from keras_vit.inference import KerasPredictor, model_card, sample_images
    from keras_vit.models.representation import head_input

# Flags that are options of `export` with the same name. `export` raises an error if the format lacks an option.
OPTIONS = ("precision", "batch_size", "version", "top_k", "max_pixels", "input_dtype", "features")
OF_SAVED_MODEL = ("signature", "batch_sizes")
OF_TFLITE = ("calibration", "calibration_images", "max_accuracy_drop")


@cli.published("output")
def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    path, format = output()  # noqa: A001  as Keras calls it
    check_flags(format)
    chosen = {option: options[option].value for option in OPTIONS if options[option].present}
    if options.model and path:
        writer_of(path, format, chosen)  # raises its errors before the model is opened
    predictor = trained_model.open_model()
    is_calibrated = format == "tflite" and options.precision in quantization.CALIBRATED
    tolerance = trained_model.limits(options.precision, predictor.card.output)
    images = trained_model.load_images(predictor.card, tolerance, 512 if is_calibrated else NUM_IMAGES)
    trained_model.check_accuracy_drop(predictor.card, images)
    if is_calibrated:
        chosen["calibration"] = calibration(predictor)
        if images.labels is None and predictor.class_names:
            logging.warning("The images have no labels: the agreement with the model is measured, not the accuracy.")
    if format == "saved_model":
        has_head = head_input(predictor.model) is not None  # the features are its input
        signatures = options.signature if has_head or options["signature"].present else ()
        chosen["extra_signatures"] = tuple(dict.fromkeys(signatures))
        chosen["warm_up"] = [int(size) for size in options.batch_sizes if size]
    try:
        path, comparison = write(predictor, path, format, images, tolerance=tolerance, **chosen)
    except (VerificationError, ConversionError, FileExistsError) as error:
        logging.error("%s", error)
        return 1
    report(path, comparison)
    return 0


def output() -> tuple[str, str]:
    """Return the path to write, and the format."""
    options = flags.FLAGS
    path, format = options.output or "", options.format  # noqa: A001
    if format and format != "saved_model" and formats.of_file(path) is None:
        precision = f"_{options.precision}" if format == "tflite" else ""
        path = os.path.join(path, f"model{precision}{formats.FORMATS[format].extension}")
    return path, (format or (formats.of_file(path) or formats.SAVED_MODEL).name)


def check_flags(format: str) -> None:  # noqa: A002
    """Raise an error, before the model is opened, for flags that belong to another format."""
    for owner, names in (("saved_model", OF_SAVED_MODEL), ("tflite", OF_TFLITE)):
        for name in names if format != owner else ():
            if flags.FLAGS[name].present:
                raise ValueError(f"--{name} is a flag of --format={owner}. Received: --{name} with --format={format}.")


def calibration(predictor: KerasPredictor) -> sample_images.SampleImages:
    """Return the training images for a calibrated precision."""
    options, card = flags.FLAGS, predictor.card
    return sample_images.for_model(
        card,
        options.calibration_images,
        patterns=options.calibration,
        split=card.recipe_data.get("train_split", "train"),
        on_bad_image=options.on_bad_image,
    )


def report(path: str, comparison: verify.Comparison) -> None:
    """Write the path of the artifact to the standard output."""
    size = model_card.size_of(path)
    logging.info("Verified: %s", comparison.summary())
    if flags.FLAGS.json:
        sys.stdout.write(json.dumps({"path": path, "bytes": size, **dataclasses.asdict(comparison)}) + "\n")
    else:
        logging.info("%.1f MB", size / 1e6)
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    cli.run(main)
