"""Artefacts that are single files: verified as drafts, and only then put in place with their labels and card."""

import contextlib
import os
import tempfile

import keras
import numpy as np

from keras_vit.serving import artefacts, card, pictures, verify


class ConversionError(RuntimeError):
    """A model that the format's converter or runtime does not take."""


@contextlib.contextmanager
def draft(path: str, description: dict, others: tuple[str, ...] = ()):
    """A file to write, which appears under its name only when all went well.

    Beside it come its card (`NAME.json`) and its labels (`NAME.labels.txt`).

    Args:
        path: The final name.
        description: The card, without `bytes`, which is added.
        others: Extensions of further files that belong to it, such as ".bin".

    Yields:
        The name to write to, in a temporary directory on the same file system, and a function to call once the file
        is written: it writes card and labels, so that the draft can be opened as an artefact.
    """
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=directory) as folder:
        name = os.path.join(folder, os.path.basename(path))

        def extended(file, extension):
            return os.path.splitext(file)[0] + extension

        def describe():
            parts = [name, *(extended(name, extension) for extension in others)]
            size = sum(os.path.getsize(part) for part in parts)
            card.write_text(card.labels_beside(name), "".join(f"{label}\n" for label in description["class_names"]))
            card.write(card.beside(name), {**description, "bytes": size})

        yield name, describe
        for extension in others:
            os.replace(extended(name, extension), extended(path, extension))
        # The file comes last: whoever finds it finds its card as well.
        for named in (card.labels_beside, card.beside, str):
            os.replace(named(name), named(path))


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
