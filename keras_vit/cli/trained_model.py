"""Loading of the model and the images for programs that compare an artifact with its model."""

import dataclasses
from typing import Any

from absl import flags

from keras_vit import inference
from keras_vit.cli import common_flags
from keras_vit.exporting import verify
from keras_vit.inference import formats, sample_images
from keras_vit.inference.keras_model import KerasPredictor
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.sample_images import SampleImages
from keras_vit.util import storage

LIMITS = {"max_difference": "max_difference", "min_agreement": "top1_agreement", "max_accuracy_drop": "accuracy_drop"}


def open_model(other: str = "output") -> KerasPredictor:
    """Return the model of `--model`. `other` is the name of another required flag."""
    options = flags.FLAGS
    if not options.model or not options[other].value:
        raise ValueError(f"--model (a run, .keras file or checkpoint) and --{other} are needed.")
    path = storage.fetched(options.model, options.checkpoint)
    if formats.find(path):
        raise ValueError(
            f"--model must be a run, .keras file or checkpoint, because artifacts do not contain a Keras model. "
            f"Received: --model={options.model}."
        )
    predictor = inference.open_predictor(path, **common_flags.model_options())
    assert isinstance(predictor, KerasPredictor)  # because the path is not an artifact
    if not predictor.card.names:
        raise ValueError(
            f"--model must be a model with classes or values. Received: --model={options.model} without names. "
            "--class_names=FILE names the classes."
        )
    return predictor


def limits(precision: str, output: str) -> verify.Tolerance:
    """Return the tolerance of a precision for an output, with the limits of the flags."""
    chosen: dict[str, Any] = {
        field: flags.FLAGS[name].value for name, field in LIMITS.items() if flags.FLAGS[name].present
    }
    return dataclasses.replace(verify.tolerance_of(precision, output), **chosen)


def load_images(card: ModelCard, tolerance: verify.Tolerance, count: int, split: str | None = None) -> SampleImages:
    """Return up to `--num_images` images to verify with; by default `count`, or as many as the tolerance needs."""
    options = flags.FLAGS
    limit = options.num_images or max(count, verify.images_for(tolerance) if card.kind.has_probabilities else 0)
    return sample_images.for_model(card, limit, patterns=options.images, split=split, on_bad_image=options.on_bad_image)


def check_accuracy_drop(card: ModelCard, images: SampleImages) -> None:
    """Raise a ValueError if `--max_accuracy_drop` is set but the accuracy cannot be measured."""
    flag = flags.FLAGS["max_accuracy_drop"]
    if flag.present and (not card.kind.has_probabilities or images.labels is None):
        received = "images without labels" if card.kind.has_probabilities else f"a model with {card.output_name!r}"
        raise ValueError(
            f"--max_accuracy_drop needs a model of classes and images with labels. Received: {received}. Without the "
            "flag, the outputs are compared with the model's outputs."
        )
