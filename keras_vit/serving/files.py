"""Artefacts that are single files: verified as drafts, and only then put in place with their labels and card."""

import contextlib
import os

import keras
import numpy as np

from keras_vit import _io
from keras_vit.serving import artefacts, card, pictures, verify


class ConversionError(RuntimeError):
    """A model that the format's converter or runtime does not take."""


@contextlib.contextmanager
def draft(path: str, description: dict):
    """A file to write, which appears under its name only when all went well.

    Beside it come its card (`PATH.json`) and its labels (`PATH.labels.txt`).

    Args:
        path: The final name. For OpenVINO's `.xml` the `.bin` file beside it belongs to it.
        description: The card, without the sizes and hashes of the files, which are added.

    Yields:
        The name to write to, in a temporary directory on the same file system, and a function to call once the file
        is written: it writes card and labels, so that the draft can be opened as an artefact.
    """
    with _io.draft_directory(path) as folder:
        name = os.path.join(folder, os.path.basename(path))

        def describe():
            _io.write_text(card.labels_beside(name), card.labels_text(description["class_names"]))
            card.write(card.beside(name), description, card.parts_of(name))

        yield name, describe
        drafts, finals = card.parts_of(name), card.parts_of(path)
        # Whoever opens the artifact meanwhile sees a card that does not match it, and is told so.
        for part in drafts:
            _io.publish_file(drafts[part], finals[part])
        for named in (card.labels_beside, card.beside):
            _io.publish_file(named(name), named(path))


def compare(
    artefact: artefacts.Artefact, network: keras.Model, preprocess, examples: pictures.Pictures, normalise=None
) -> verify.Comparison:
    """Runs an artefact on real pictures and compares with the model.

    Args:
        artefact: The artefact.
        network: The model, which returns logits.
        preprocess: Encoded picture (scalar string) -> what the artefact takes.
        examples: Real pictures.
        normalise: From what the artefact takes to what the model takes; None if these are the same.
    """
    reference = artefacts.KerasArtefact(network, artefact.card)
    expected, answers = [], []
    for start in range(0, len(examples.contents), 16):
        images = pictures.prepare(examples.contents[start : start + 16], preprocess)
        expected.append(reference.predict(images if normalise is None else normalise(images)))
        answers.append(artefact.predict(images))
    return verify.compare(np.concatenate(expected), np.concatenate(answers), examples.labels)
