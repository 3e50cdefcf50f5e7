"""Artifacts in a single file, which are verified as drafts and then published with their model card."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator

from keras_vit.inference import model_card
from keras_vit.inference.model_card import ModelCard
from keras_vit.util import file_io


class ConversionError(RuntimeError):
    """The format's converter or runtime does not support the model."""


@contextlib.contextmanager
def draft(path: str, card: ModelCard) -> Iterator[tuple[str, Callable[..., ModelCard]]]:
    """Write a draft of a file and its model card, and publish both if the block ends without an error.

    Yields the name of the draft, and a function that writes its card. The arguments of the function replace fields of
    the card.
    """
    with file_io.draft_directory(path) as folder:
        name = os.path.join(folder, os.path.basename(path))
        yield name, lambda **fields: model_card.write(name, dataclasses.replace(card, **fields))
        # Until the new card is published, the old card does not match the new file, and readers reject both.
        finals = model_card.parts_of(path)
        for part, file in model_card.parts_of(name).items():
            file_io.publish_file(file, finals[part])
        file_io.publish_file(model_card.path_of(name), model_card.path_of(path))
