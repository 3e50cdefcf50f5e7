"""Splits of data sets as batches of arrays that a classifier takes."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from keras_vit.evaluators.context import Split


def opener(
    batch_size: int, on_bad_image: str = "error", opened_source: Callable[[str, Any], None] | None = None
) -> Callable[[str, str, str], Split]:
    """Return the function of source, split and preprocessing string that `Context.open_split` needs.

    It opens each split once: evaluating again during training costs the reading of the data only.

    Args:
        batch_size: Images per batch.
        on_bad_image: `"error"` raises `UnreadableImageError` at an image that cannot be read, `"skip"` leaves it out.
        opened_source: Called with the name of a source and the opened source, the first time that a split is used.

    Example:
    >>> open_split = opener(batch_size=100)
    >>> split = open_split("digits", "test", "value_range(-1, 1)")
    >>> [len(batch["label"]) for batch in split.batches]
    [100, 100, 100, 100]
    """

    @functools.cache
    def open_split(source: str, split: str, pp: str) -> Split:
        from keras_vit import data  # imports TensorFlow, which the evaluators do not need

        opened = data.open_source(source, split=split)
        if opened_source is not None:
            opened_source(source, opened)
        dataset = data.eval_batches(opened, pp, batch_size=batch_size, on_bad_image=on_bad_image)
        names = None
        if isinstance(opened, data.IndexedSource):
            names = tuple(opened.origin(index) for index in range(opened.num_examples))
        batches = _Batches(dataset, data.preprocess.device_function(pp))
        shape = dataset.element_spec["image"].shape[1:]
        image_shape = tuple(shape.as_list()) if shape.rank else None
        return Split(batches, opened.num_classes, opened.multi_label, names, opened.class_names, image_shape)

    return open_split


class _Batches:
    """A dataset as arrays in the range of the model, to be iterated over any number of times."""

    def __init__(self, dataset: Any, to_model_range: Callable):
        self.dataset, self.to_model_range = dataset, to_model_range

    def __iter__(self) -> Iterator[dict]:
        from keras_vit.data import image_errors

        batches = iter(self.dataset)
        while True:
            with image_errors("Repair or remove it, or pass --on_bad_image=skip"):
                batch = next(batches, None)
            if batch is None:
                return
            images = self.to_model_range(batch["image"]).numpy()
            yield {**{name: value.numpy() for name, value in batch.items() if name != "image"}, "image": images}
