"""Artifacts that are single files: verified as drafts, then published with their labels and model card."""

import contextlib
import os
from collections.abc import Callable, Iterator

from keras_vit import _io
from keras_vit.inference import model_card
from keras_vit.inference.model_card import ModelCard


class ConversionError(RuntimeError):
    """A model that the format's converter or runtime does not take."""


@contextlib.contextmanager
def draft(path: str, card: ModelCard) -> Iterator[tuple[str, Callable[[], None]]]:
    """Write a file that appears under its name only when all went well.

    Its model card (`PATH.json`) and its labels (`PATH.labels.txt`) appear beside it.
    """
    with _io.draft_directory(path) as folder:
        name = os.path.join(folder, os.path.basename(path))

        def describe() -> None:
            if card.class_names:
                _io.write_text(model_card.labels_path_of(name), model_card.labels_text(card.class_names))
            model_card.write(name, card)

        yield name, describe
        drafts, finals = model_card.parts_of(name), model_card.parts_of(path)
        # Until the card follows, the new file has the old card, which is refused because it does not match.
        for part in drafts:
            _io.publish_file(drafts[part], finals[part])
        if card.class_names:
            _io.publish_file(model_card.labels_path_of(name), model_card.labels_path_of(path))
        elif os.path.exists(model_card.labels_path_of(path)):  # of a former file of that name
            os.remove(model_card.labels_path_of(path))
        _io.publish_file(model_card.path_of(name), model_card.path_of(path))
