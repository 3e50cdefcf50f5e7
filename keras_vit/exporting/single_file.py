"""Artifacts that are single files: verified as drafts, then published with their model card."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator

from keras_vit import _io
from keras_vit.inference import model_card
from keras_vit.inference.model_card import ModelCard


class ConversionError(RuntimeError):
    """A model that the format's converter or runtime does not take."""


@contextlib.contextmanager
def draft(path: str, card: ModelCard) -> Iterator[tuple[str, Callable[..., ModelCard]]]:
    """Write a file, and its model card beside it, that appear under their names only when all went well.

    Yields the name of the draft, and the function that writes its card, with further fields as arguments.
    """
    with _io.draft_directory(path) as folder:
        name = os.path.join(folder, os.path.basename(path))
        yield name, lambda **fields: model_card.write(name, dataclasses.replace(card, **fields))
        # Until the card follows, the new file has the old card, which is refused because it does not match.
        finals = model_card.parts_of(path)
        for part, file in model_card.parts_of(name).items():
            _io.publish_file(file, finals[part])
        _io.publish_file(model_card.path_of(name), model_card.path_of(path))
