"""Evaluation on all devices, in which every example counts exactly once."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_vit import recipe as recipes
from keras_vit.training.state import TrainState
from keras_vit.training.step import EvalStep

_MOST_CLASSES = 200  # up to which the confusion of classes is counted


class Evaluation:
    """Evaluates the state of a run on one split, as often as it is called.

    Args:
        state: of the run.
        recipe: of the run.
        strategy: of the run.
        batches: distributed dataset of one pass, see `keras_vit.data.eval_batches`.
        inputs: function of a batch to (images, labels), see `keras_vit.training.inputs`.
        classes: number of classes.
        multi_label: whether examples may have several.

    Attributes:
        confusion: of the last call, counts `[true class, predicted class]`; None for many classes or several labels.
        examples: of the last call, a few images as the pipeline gives them, with their labels and logits.
    """

    step_type = EvalStep

    def __init__(
        self,
        state: TrainState,
        recipe: recipes.Recipe,
        strategy: tf.distribute.Strategy,
        batches: tf.distribute.DistributedDataset,
        inputs: Callable,
        classes: int,
        multi_label: bool = False,
    ):
        self.strategy, self.batches, self.split = strategy, batches, recipe.data.eval_split
        self.with_confusion = classes <= _MOST_CLASSES and not multi_label
        self.confusion, self.examples = None, None
        self._evaluate_batch = self._function(self.step_type(state, recipe, inputs, self.with_confusion))

    def __call__(self) -> dict:
        """Returns `split`, `eval_accuracy`, `eval_loss` and `examples`, their number.

        Raises:
            ValueError: if there is no example.
        """
        sums, confusion = np.zeros(3, np.float64), 0
        self.examples = None
        for batch in self.batches:
            batch_sums, batch_confusion, logits = self._evaluate_batch(batch)
            sums += np.asarray(batch_sums)
            confusion = confusion + np.asarray(batch_confusion).astype(np.int64)
            if self.examples is None:
                self.examples = self._examples(batch, np.asarray(logits))
        loss, correct, count = sums.tolist()
        if not count:
            raise ValueError(f"There is nothing to evaluate: the split {self.split!r} has no example.")
        self.confusion = confusion if self.with_confusion else None
        return {
            "split": self.split,
            "eval_accuracy": correct / count,
            "eval_loss": loss / count,
            "examples": int(count),
        }

    def _function(self, step: EvalStep) -> Callable:
        """Returns the compiled function of a batch: its sums, its confusion, and the logits of the first replica."""
        strategy = self.strategy

        @tf.function(autograph=False)
        def evaluate_batch(batch):
            sums, confusion, logits = strategy.run(step, args=(batch,))
            total = [strategy.reduce("SUM", value, axis=None) for value in (sums, confusion)]
            return *total, strategy.experimental_local_results(logits)[0]

        return evaluate_batch

    def _of_first_replica(self, value) -> np.ndarray:
        return self.strategy.experimental_local_results(value)[0].numpy()

    def _examples(self, batch: dict, logits: np.ndarray) -> dict:
        first = {name: self._of_first_replica(value) for name, value in batch.items()}
        kept = first["mask"] > 0
        return {"image": first["image"][kept], "label": first["label"][kept], "logits": logits[kept]}
