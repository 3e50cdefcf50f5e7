"""Writing of artifacts that are files: all parts and the model card are renamed together, after the verification."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator

from keras_vit.exporting import artifact_check, verify
from keras_vit.inference import model_card
from keras_vit.inference.keras_model import KerasPredictor
from keras_vit.inference.model_card import ModelCard
from keras_vit.inference.opening import open_artifact
from keras_vit.inference.sample_images import SampleImages
from keras_vit.util import file_io


class ConversionError(RuntimeError):
    """The format's converter or runtime does not support the model."""


def write_verified(
    path: str,
    card: ModelCard,
    write: Callable[[str], object],
    reference: KerasPredictor,
    images: SampleImages,
    tolerance: verify.Tolerance | None,
) -> tuple[str, verify.Comparison]:
    """Write a file if its outputs match the model's. Return the path and the comparison.

    `write` writes the file to a given path. `tolerance=None` uses the limits of the precision in the card.
    """
    limits = tolerance or verify.tolerance_of(card.precision, card.output)
    with draft(path, card) as (name, describe):
        write(name)
        describe()
        try:
            artifact = open_artifact(name)
            result = artifact_check.check(artifact, reference, images, limits)
        except (RuntimeError, ValueError) as error:  # of the format's runtime
            raise ConversionError(f"The {card.precision} file cannot be run: {error}") from error
        comparison = artifact_check.require(result, f"The {card.precision} {artifact.kind} file", card.precision)
        describe(verification=dataclasses.asdict(comparison))
        del artifact  # on some systems an open file cannot be moved
    return path, comparison


@contextlib.contextmanager
def draft(path: str, card: ModelCard) -> Iterator[tuple[str, Callable[..., ModelCard]]]:
    """Write a draft of a file and its model card, and rename both if the block ends without an error.

    Yields the name of the draft, and a function that writes its card. The arguments of the function replace fields of
    the card.
    """
    with file_io.draft_directory(path) as folder:
        name = os.path.join(folder, os.path.basename(path))
        yield name, lambda **fields: model_card.write(name, dataclasses.replace(card, **fields))
        # Until the new card is renamed, the old card does not match the new file, and readers reject both.
        finals = model_card.parts_of(path)
        for part, file in model_card.parts_of(name).items():
            file_io.move_file(file, finals[part])
        file_io.move_file(model_card.path_of(name), model_card.path_of(path))
