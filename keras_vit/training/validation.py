"""Validation: score and loss on the evaluation split, on all devices, where every example counts exactly once."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from absl import logging

from keras_vit import recipe as recipes
from keras_vit.training.backend import Backend, EvaluateBatch

MAX_CLASSES = 200  # of more, the confusion of classes is not counted


class Validation:
    """The evaluation whose score decides about the best checkpoint.

    `evaluate` is the result of `Backend.compile_evaluation`, and `batches` are the distributed batches of one pass.

    Attributes:
        confusion: Of the last pass, counts `[true class, predicted class]`; None where they are not counted.
        examples: Of the last pass, the first rows of the batch as the pipeline gives them, with `"predictions"`.
    """

    def __init__(self, backend: Backend, recipe: recipes.Recipe, evaluate: EvaluateBatch, batches: Iterable[Any]):
        self.backend, self.recipe, self.evaluate, self.batches = backend, recipe, evaluate, batches
        self.confusion: np.ndarray | None = None
        self.examples: dict[str, np.ndarray] | None = None

    def intervals(self) -> list[int]:
        """Return numbers of steps at whose multiples it runs."""
        return [self.recipe.eval_every]

    def __call__(self, step: int) -> Iterator[dict[str, Any]]:
        """Run a pass over the split; yield its score (such as `eval_accuracy`), `eval_loss` and `examples`."""
        split = self.recipe.data.eval_split
        sums, confusion = np.zeros(3, np.float64), np.zeros([0, 0], np.int64)
        self.examples = None
        for batch in self.batches:
            batch_sums, batch_confusion, predictions = self.evaluate(batch)
            sums += batch_sums
            confusion = batch_confusion.astype(np.int64) + (confusion if confusion.size else 0)
            if self.examples is None:
                self.examples = self._first_examples(batch, predictions)
        loss, score, count = sums.tolist()
        if not count:
            raise ValueError(f"There is nothing to evaluate: the split {split!r} has no example.")
        self.confusion = confusion if confusion.size else None
        score, loss, count = score / count, loss / count, int(count)
        name = self.recipe.task.score
        logging.info("step %d: %s %s %.4f loss %.4f on %d examples", step, split, name, score, loss, count)
        yield {"split": split, f"eval_{name}": score, "eval_loss": loss, "examples": count}

    def _first_examples(self, batch: dict, predictions: Any) -> dict[str, np.ndarray]:
        first = {name: self.backend.first_rows(value) for name, value in {**batch, "predictions": predictions}.items()}
        kept = first["valid"] > 0
        return {name: values[kept] for name, values in first.items()}
