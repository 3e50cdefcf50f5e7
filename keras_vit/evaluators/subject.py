"""What is evaluated, and on which data where an evaluator names none of its own."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from keras_vit.evaluators import classes
from keras_vit.evaluators.features import collect


class NotMeasurable(ValueError):
    """The network lacks what an evaluator needs. Other evaluators may still run on it."""


@dataclasses.dataclass
class Split:
    """One split of a source, ready to be iterated over.

    Attributes:
        batches: Yields dictionaries of arrays: "image" (float32, ready for the model), "label", "mask".
        num_classes: Number of classes of the source.
        multi_label: Whether labels are multi-hot rows.
        names: Path of each image in the order of the batches, or None where there are none.
        class_names: Names of the classes, or None where they are not known.
        image_shape: `(H, W, C)` of the images, of which unknown sizes are None; None where nothing is known.
    """

    batches: object
    num_classes: int
    multi_label: bool = False
    names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    image_shape: tuple[int | None, ...] | None = None


@dataclasses.dataclass
class Subject:
    """A network to evaluate, as functions of arrays; features of a split are computed once for all evaluators.

    Attributes:
        predict: Takes images (float32 `[B, H, W, C]`, ready for the model) and returns scores `[B, classes]`.
        features: Takes images and returns what the head sees, `[B, D]`; None for artifacts that give scores only.
        open_split: Takes a source, a split and a preprocessing string and returns a `Split`.
        source: Where an evaluator looks that names no source.
        train_split: Its examples to learn from.
        eval_split: Its examples to test on.
        pp: Preprocessing where an evaluator names none.
        output: "softmax" or "sigmoid", as the network was trained.
        scores_are: "logits" or "probabilities": what `predict` returns.
        class_names: Names of the classes in the order of the scores; None where they are not known.
        image_shape: `(H, W, C)` that `predict` takes, of which any size is None; None where it is not known.
        without_features: Why `features` is None, and what to do.
    """

    predict: Callable[[np.ndarray], np.ndarray]
    features: Callable[[np.ndarray], np.ndarray] | None
    open_split: Callable[[str, str, str], Split]
    source: str
    train_split: str
    eval_split: str
    pp: str
    output: str = "softmax"
    scores_are: str = "logits"
    class_names: tuple[str, ...] | None = None
    image_shape: tuple[int | None, ...] | None = None
    without_features: str = "it gives scores only, not the features before the head"
    _collected: dict = dataclasses.field(default_factory=dict, repr=False)

    def require_features(self) -> None:
        """Refuses a network that gives scores only.

        Raises:
            NotMeasurable: If it does; says why.
        """
        if self.features is None:
            raise NotMeasurable(f"{self.without_features}.")

    def features_of(self, source: str | None, split: str, pp: str | None) -> tuple[tuple[np.ndarray, np.ndarray], int]:
        """Features `[N, D]` and labels `[N]` of a split, and the number of classes.

        Raises:
            NotMeasurable: If the network gives scores only.
        """
        self.require_features()
        key = (source or self.source, split, pp or self.pp)
        if key not in self._collected:
            opened = self.open_split(*key)
            self._collected[key] = collect(self.features, opened.batches), opened.num_classes
        return self._collected[key]

    def open_fitting(self, source: str, split: str, pp: str) -> Split:
        """Opens a split whose images the network takes.

        Raises:
            ValueError: If the images have another shape.
        """
        opened = self.open_split(source, split, pp)
        if self.image_shape is not None and opened.image_shape is not None:
            pairs = list(zip(opened.image_shape, self.image_shape, strict=False))
            if len(opened.image_shape) != len(self.image_shape) or any(None not in (a, b) and a != b for a, b in pairs):
                raise ValueError(
                    f"The model takes images of the shape {tuple(self.image_shape)}. Received: {source!r} with "
                    f"{tuple(opened.image_shape)} after {pp!r}: give another pp."
                )
        return opened

    def check_classes(self, source: str, opened: Split, subset: Sequence[int] | None = None) -> None:
        """Refuses data whose classes are not the network's.

        Args:
            source: Where the data come from.
            opened: The data.
            subset: The only classes of the network that count, by their numbers; None for all.

        Raises:
            ValueError: If they differ in number or order, see `classes.check`.
        """
        if self.class_names is None:
            return
        known = self.class_names if subset is None else [self.class_names[number] for number in subset]
        # Data without names are compared by their number of classes.
        names = known if opened.class_names is None and opened.num_classes == len(known) else opened.class_names
        classes.check(source, names or [str(number) for number in range(opened.num_classes)], known)
