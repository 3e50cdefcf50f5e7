"""What is evaluated, and on which data where an evaluator names none of its own."""

import dataclasses
from collections.abc import Callable

import numpy as np

from keras_vit.evaluators.features import collect


@dataclasses.dataclass
class Split:
    """One split of a source, ready to be iterated over.

    Attributes:
        batches: Yields dictionaries of arrays: "image" (float32, ready for the model), "label", "mask".
        num_classes: Number of classes of the source.
        multi_label: Whether labels are multi-hot rows.
        names: Path of each image in the order of the batches, or None where there are none.
    """

    batches: object
    num_classes: int
    multi_label: bool = False
    names: tuple[str, ...] | None = None


@dataclasses.dataclass
class Subject:
    """A network to evaluate, as functions of arrays; features of a split are computed once for all evaluators.

    Attributes:
        predict: Takes images (float32 `[B, H, W, C]`, ready for the model) and returns scores `[B, classes]`.
        features: Takes images and returns what the head sees, `[B, D]`; None for artefacts that give scores only.
        open_split: Takes a source, a split and a preprocessing string and returns a `Split`.
        source: Where an evaluator looks that names no source.
        train_split: Its examples to learn from.
        eval_split: Its examples to test on.
        pp: Preprocessing where an evaluator names none.
        output: "softmax" or "sigmoid", as the network was trained.
        scores_are: "logits" or "probabilities": what `predict` returns.
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
    _collected: dict = dataclasses.field(default_factory=dict, repr=False)

    def features_of(self, source: str | None, split: str, pp: str | None) -> tuple[tuple[np.ndarray, np.ndarray], int]:
        """Features `[N, D]` and labels `[N]` of a split, and the number of classes.

        Raises:
            ValueError: If the network gives scores only.
        """
        if self.features is None:
            raise ValueError(
                "This evaluator needs the features before the head, which this artefact does not give: evaluate the "
                "directory of the run instead of the exported file."
            )
        key = (source or self.source, split, pp or self.pp)
        if key not in self._collected:
            opened = self.open_split(*key)
            self._collected[key] = collect(self.features, opened.batches), opened.num_classes
        return self._collected[key]
