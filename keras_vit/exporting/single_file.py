"""Artifacts that are single files: verified as drafts, then published with their labels and model card."""

import contextlib
import os
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from keras_vit import _io
from keras_vit.exporting import verify
from keras_vit.inference import model_card, sample_images
from keras_vit.inference.classifier import Classifier
from keras_vit.inference.keras_model import KerasClassifier
from keras_vit.inference.model_card import ModelCard


class ConversionError(RuntimeError):
    """A model that the format's converter or runtime does not take."""


@contextlib.contextmanager
def draft(path: str, card: ModelCard) -> Iterator[tuple[str, Callable[[], None]]]:
    """Write a file that appears under its name only when all went well.

    Its model card (`PATH.json`) and its labels (`PATH.labels.txt`) appear beside it.

    Args:
        path: The final name. The `.bin` file beside OpenVINO's `.xml` belongs to it.
        card: Description, without sizes and hashes.

    Yields:
        Name to write to, in a temporary directory on the same file system, and a function to call once the file is
        written: it writes card and labels, so that the draft can be opened as an artifact.
    """
    with _io.draft_directory(path) as folder:
        name = os.path.join(folder, os.path.basename(path))

        def describe() -> None:
            _io.write_text(model_card.labels_path_of(name), model_card.labels_text(card.class_names))
            model_card.write(model_card.path_of(name), card, model_card.parts_of(name))

        yield name, describe
        drafts, finals = model_card.parts_of(name), model_card.parts_of(path)
        # Until the card follows, the new file has the old card, which is refused because it does not match.
        for part in drafts:
            _io.publish_file(drafts[part], finals[part])
        for path_of in (model_card.labels_path_of, model_card.path_of):
            _io.publish_file(path_of(name), path_of(path))


def compare(
    artifact: Classifier,
    model: keras.Model,
    preprocess: Callable[[tf.Tensor], tf.Tensor],
    images: sample_images.SampleImages,
    normalize: Callable | None = None,
) -> verify.Comparison:
    """Run an artifact on real images and compare it with the model.

    Args:
        artifact: The artifact.
        model: The model, which returns logits.
        preprocess: Function from an encoded image (scalar string) to the artifact's input.
        images: Real images.
        normalize: Function from the artifact's input to the model's input; None if they are the same.
    """
    reference = KerasClassifier(model, artifact.card)
    expected, answers = [], []
    for start in range(0, len(images.contents), 16):
        prepared = sample_images.prepare(images.contents[start : start + 16], preprocess)
        expected.append(reference.predict(prepared if normalize is None else np.asarray(normalize(prepared))))
        answers.append(artifact.predict(prepared))
    return verify.compare(np.concatenate(expected), np.concatenate(answers), images.labels)
