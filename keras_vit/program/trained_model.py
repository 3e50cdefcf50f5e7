"""Loading of the model and the images for programs that compare an artifact with its model."""

from absl import flags

from keras_vit import _storage
from keras_vit._progress import Progress
from keras_vit.inference import formats, keras_model, sample_images
from keras_vit.inference.keras_model import KerasPredictor
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.outputs import CLASSIFICATION
from keras_vit.inference.sample_images import SampleImages
from keras_vit.program import common_flags


def open_model(other: str = "output") -> KerasPredictor:
    """Return the model of `--model`. `other` is the name of another required flag."""
    options = flags.FLAGS
    if not options.model or not options[other].value:
        raise ValueError(f"--model (a run, .keras file or checkpoint) and --{other} are needed.")
    path = _storage.fetched(options.model, options.checkpoint)
    if formats.find(path):
        raise ValueError(
            f"--model must be a run, .keras file or checkpoint, because artifacts do not contain a Keras model. "
            f"Received: --model={options.model}."
        )
    with Progress(f"Opening {options.model}"):
        predictor = keras_model.open_model(path, **common_flags.model_options())
    if not predictor.card.names:
        raise ValueError(f"--model must be a model with classes or values. Received: --model={options.model}.")
    return predictor


def load_images(card: ModelCard, count: int, split: str | None = None) -> SampleImages:
    """Return up to `count` images to verify with."""
    options = flags.FLAGS
    return sample_images.for_model(card, count, patterns=options.images, split=split, on_bad_image=options.on_bad_image)


def check_accuracy_drop(card: ModelCard, images: SampleImages) -> None:
    """Raise a ValueError if `--max_accuracy_drop` is set but the accuracy cannot be measured."""
    flag = flags.FLAGS["max_accuracy_drop"]
    if flag.present and (card.output not in CLASSIFICATION or images.labels is None):
        received = "images without labels" if card.output in CLASSIFICATION else f"a model with {card.output_name!r}"
        raise ValueError(
            f"--max_accuracy_drop needs a model of classes and images with labels. Received: {received}. Without the "
            "flag, the outputs are compared with the model's outputs."
        )
