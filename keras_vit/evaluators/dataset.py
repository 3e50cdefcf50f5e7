"""Splits of data sets as batches of arrays for predictors."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from keras_vit.util.progress import Progress, track

Labeled = tuple[np.ndarray, np.ndarray]  # features [N, D] and labels [N]


@dataclasses.dataclass
class EvaluationData:
    """A split of a data set, which can be iterated over any number of times.

    Attributes:
        batches: Iterable of dictionaries of arrays: "image" (float32, preprocessed), "label" or "mask", and "valid".
        num_classes: Number of classes of the data set.
        label_kind: Kind of the labels: `"class"`, `"classes"` (multi-hot rows), `"values"` or `"mask"`.
        names: Path of each image in the order of the batches, or None if the images have no paths.
        class_names: Names of the classes, or None if they are unknown.
        value_names: Names of the values.
        image_shape: `(H, W, C)` of the images, with None for unknown sizes.
        originals: Only for masks: function that returns dictionaries of an "image" of any size and its "mask" in the
            stored size. The argument is a preprocessing string, or None for the string of the split without its
            operations that crop or resize.

    Example:
    >>> split = keras_vit.evaluators.split_opener(batch_size=100)("digits", "test", "value_range(-1, 1)")
    >>> split.num_classes, split.image_shape
    (10, (8, 8, 1))
    """

    batches: Iterable[dict]
    num_classes: int
    label_kind: str = "class"
    names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    image_shape: tuple[int | None, ...] | None = None
    value_names: tuple[str, ...] = ()
    originals: Callable[[str | None], Iterable[dict]] | None = None


def split_opener(
    batch_size: int, on_bad_image: str = "error", opened_source: Callable[[str, Any], None] | None = None
) -> Callable[[str, str, str], EvaluationData]:
    """Return a function that opens a split, for `Context.open_split`.

    The function takes a source, a split and a preprocessing string. It opens each split once; later evaluations during
    training only read the images.

    Args:
        batch_size: Images per batch.
        on_bad_image: Whether an image that cannot be read raises `UnreadableImageError` (`"error"`) or is skipped
            (`"skip"`).
        opened_source: Function that is called with the name of a source and the opened source when a split is opened.

    Example:
    >>> open_split = split_opener(batch_size=100)
    >>> split = open_split("digits", "test", "value_range(-1, 1)")
    >>> [len(batch["label"]) for batch in split.batches]
    [100, 100, 100, 100]
    """

    @functools.cache
    def open_split(source: str, split: str, pp: str) -> EvaluationData:
        from keras_vit import data  # imports TensorFlow, which evaluators do not need

        opened = data.open_source(source, split=split)
        if opened_source is not None:
            opened_source(source, opened)
        dataset = data.eval_batches(opened, pp, batch_size=batch_size, on_bad_image=on_bad_image)
        names = None
        if isinstance(opened, data.IndexedSource):
            names = tuple(opened.origin(index) for index in range(opened.num_examples))
        what = f"Running the model on {source}[{split}]"
        batches = _Batches(dataset, data.preprocess.device_function(pp), what, opened.num_examples)
        shape = dataset.element_spec["image"].shape[1:]
        image_shape = tuple(shape.as_list()) if shape.rank else None
        kind, classes, values = opened.label_kind, opened.class_names, opened.value_names

        def originals(own: str | None) -> Iterable[dict]:
            return track(data.pipeline.originals(opened, pp, on_bad_image, own), what, opened.num_examples)

        given = originals if opened.kind.has_masks else None
        return EvaluationData(batches, opened.num_classes, kind, names, classes, image_shape, values, given)

    return open_split


class _Batches:
    """Batches of arrays in the value range of the model, with a progress bar for each pass."""

    def __init__(self, dataset: Any, to_model_range: Callable, what: str, num_examples: int):
        self.dataset, self.to_model_range, self.what, self.num_examples = dataset, to_model_range, what, num_examples

    def __iter__(self) -> Iterator[dict]:
        from keras_vit.data import image_errors

        with Progress(self.what, self.num_examples) as bar:
            batches = iter(self.dataset)
            while True:
                with image_errors("Repair or remove it, or pass --on_bad_image=skip"):
                    batch = next(batches, None)
                if batch is None:
                    return
                images = self.to_model_range(batch["image"]).numpy()
                yield {**{name: value.numpy() for name, value in batch.items() if name != "image"}, "image": images}
                bar.update(min(bar.done + len(images), self.num_examples))


def renumber(numbers: np.ndarray, batch: dict) -> dict:
    """Replace labels with class numbers of a model. `numbers` has the number of each class, or -1 for no class.

    Rows whose class has the number -1 are not valid. In a mask, pixels of such a class and ignored pixels become -1.
    """
    if "mask" in batch:
        mask = np.asarray(batch["mask"])
        return {**batch, "mask": np.append(numbers, -1)[np.minimum(mask, len(numbers))]}
    labels = np.asarray(batch["label"])
    if labels.ndim == 2:  # every class has a number
        return {**batch, "label": labels[:, np.argsort(numbers)]}
    labels = numbers[labels]
    return {**batch, "label": np.maximum(labels, 0), "valid": np.where(labels < 0, 0, batch.get("valid", 1))}


def collect(function: Callable[[np.ndarray], np.ndarray], batches: Iterable[dict]) -> Labeled:
    """Apply a function from images to `[B, D]` to all batches, and drop rows of padding.

    Returns the outputs, float32 `[N, D]`, and labels, `[N]` or, for several classes or values per image, `[N, k]`.
    """
    outputs, labels = [], []
    for batch in batches:
        values, truth = np.asarray(function(batch["image"])), np.asarray(batch["label"])
        if values.ndim != 2 or len(values) != len(truth):
            raise ValueError(f"Expected one vector per image, [{len(truth)}, D]. Received: shape {values.shape}.")
        kept = np.asarray(batch["valid"]) > 0 if "valid" in batch else np.ones(len(truth), bool)
        outputs.append(values[kept].astype(np.float32))
        labels.append(truth[kept])
    if not sum(map(len, labels)):
        raise ValueError("There is nothing to evaluate: no batch had an example with valid 1.")
    return np.concatenate(outputs), np.concatenate(labels)
