"""Steps that the export programs share; their flags are in `keras_vit.program.common_flags`."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence

from absl import flags, logging

from keras_vit.exporting import onnx_openvino, single_file, verify
from keras_vit.inference import keras_model, latency, opening, sample_images
from keras_vit.inference.keras_model import KerasClassifier
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.sample_images import SampleImages


def open_model(needed: Sequence[str] = ("output",)) -> KerasClassifier:
    """Return the model of `--model`."""
    options = flags.FLAGS
    if not options.model or not all(options[name].value for name in needed):
        names = " and ".join(f"--{name}" for name in needed)
        raise ValueError(f"--model (a run, .keras file or checkpoint) and {names} are needed.")
    if opening.is_artifact(options.model):
        raise ValueError(
            f"--model must be a run, .keras file or checkpoint: an exported artifact holds no Keras model. "
            f"Received: --model={options.model}."
        )
    classifier = keras_model.open_model(options.model, options.preprocess, options.labels, options.checkpoint)
    if not classifier.class_names:
        raise ValueError(f"--model must be a model with a classification head. Received: --model={options.model}.")
    return classifier


def load_images(
    card: ModelCard, default: int = 64, *, patterns: Sequence[str] | None = None, split: str | None = None
) -> SampleImages:
    """Return the images to verify with."""
    options = flags.FLAGS
    return sample_images.for_model(
        card,
        options.num_images or default,
        patterns=options.images if patterns is None else patterns,
        split=split,
        on_bad_image=options.on_bad_image,
    )


def run_export(export: Callable[[], tuple[str, verify.Comparison]]) -> int:
    """Run an export and write the path of the artifact to the standard output."""
    try:
        path, comparison = export()
    except (verify.VerificationError, single_file.ConversionError, FileExistsError) as error:
        logging.error("%s", error)
        return 1
    size = latency.size_of(path)
    logging.info("Verified: %s", comparison.summary())
    if flags.FLAGS.json:
        sys.stdout.write(json.dumps({"path": path, "bytes": size, **dataclasses.asdict(comparison)}) + "\n")
    else:
        logging.info("%.1f MB", size / 1e6)
        sys.stdout.write(f"{path}\n")
    return 0


def run_onnx_openvino(format: str) -> int:  # noqa: A002
    """Run the export to ONNX or OpenVINO; return the exit code."""
    options = flags.FLAGS
    path = options.output
    if path and options.model:
        extension = onnx_openvino.FORMATS[format][0]
        path = path if path.endswith(extension) else os.path.join(path, f"model{extension}")
        onnx_openvino.check(format, path)
    classifier = open_model()
    images = load_images(classifier.card)

    def export() -> tuple[str, verify.Comparison]:
        comparison = onnx_openvino.export_onnx_openvino(
            classifier.model, path, format, card=classifier.card, images=images, batch_size=options.batch_size
        )
        return path, comparison

    return run_export(export)
