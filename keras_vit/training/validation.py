"""Validation: metrics of the task on a split, and the choice of the weights by them. Every example counts once."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from absl import logging

from keras_vit.data import errors as data_errors
from keras_vit.evaluators import confidence
from keras_vit.runs.checkpoints import saved_steps
from keras_vit.runs.run_directory import read_metrics
from keras_vit.tasks import Task
from keras_vit.training.backend import Backend, EvaluateBatch
from keras_vit.training.loop import Loop
from keras_vit.training.metrics import MetricsWriter
from keras_vit.training.run_data import SKIP_ADVICE
from keras_vit.util.progress import track


class Validation:
    """Evaluation whose score selects the best checkpoint or, with `test_split`, the evaluation at the end.

    `evaluate` is the result of `Backend.compile_evaluation`, and `batches` are the distributed batches of one pass.
    `num_batches` is for the progress bar.

    Attributes:
        results: Metrics of the last pass, such as `eval_accuracy`, `eval_loss` and `examples`.
        tally: Counts of the task in the last pass, such as `[true class, predicted class]`; None if it counts nothing.
        examples: First rows of the first batch in the last pass, as the pipeline returns them, with `"predictions"`.
    """

    def __init__(
        self,
        backend: Backend,
        task: Task,
        evaluate: EvaluateBatch,
        batches: Iterable[Any],
        num_batches: int | None = None,
        test_split: str | None = None,
    ):
        self.backend, self.task, self.evaluate, self.batches = backend, task, evaluate, batches
        self.num_batches, self.test_split = num_batches, test_split
        self.results = dict[str, Any]()
        self.tally: np.ndarray | None = None
        self.examples: dict[str, np.ndarray] | None = None

    def intervals(self) -> list[int]:
        """Return the interval in steps. A split that is also the test split is evaluated only at the end."""
        recipe = self.task.recipe
        return [] if recipe.data.test_split == recipe.data.eval_split else [recipe.eval_every]

    def __call__(self, step: int, last: bool = False) -> Iterator[dict[str, Any]]:
        """Run one pass over the split and yield `results`. The metrics of the test split are named `test_accuracy`."""
        split = self.test_split or self.task.recipe.data.eval_split
        sums: dict[str, float] = {}
        tally = np.zeros([0, 0], np.int64)
        self.examples = None
        rows: dict[str, list[np.ndarray]] = {"valid": [], "predictions": [], "label": []}
        for batch in track(self.batches, "Validation", self.num_batches, "batches"):
            batch_sums, batch_tally, predictions = self.evaluate(batch)
            sums = {name: sums.get(name, 0.0) + value for name, value in batch_sums.items()}
            tally = batch_tally.astype(np.int64) + (tally if tally.size else 0)
            if self.task.collects:
                for name, gathered in rows.items():
                    gathered.append(self.backend.gather({**batch, "predictions": predictions}[name]))
            if self.examples is None:
                self.examples = self._first_examples(batch, predictions)
        count = int(sums.pop("examples", 0))
        if not count:
            raise ValueError(f"There is nothing to evaluate: the split {split!r} has no examples.")
        self.tally = tally if tally.size else None
        values = {name: value / count for name, value in sums.items()} | self.task.of_tally(tally)
        if self.task.collects:
            valid, *collected = (np.concatenate(batches) for batches in rows.values())
            values |= self.task.of_examples(*(all_rows[valid > 0] for all_rows in collected))
        metrics = {metric: values[metric.name] for metric in reversed(self.task.metrics)}  # the loss last
        shown = " ".join(f"{metric.name} {value:.4f}" for metric, value in metrics.items())
        logging.info("step %d: %s %s on %d examples", step, split, shown, count)
        if not step and self.tally is not None and self.task.score.name == "accuracy":  # of a fitted head
            for line in confidence.lines(self.tally):
                logging.info("%s", line)
        named = {f"eval_{metric.name}": value for metric, value in metrics.items()}
        self.results = {"split": split, **named, "examples": count}
        yield named_test(self.results) if self.test_split else self.results

    def _first_examples(self, batch: dict, predictions: Any) -> dict[str, np.ndarray]:
        first = {name: self.backend.first_rows(value) for name, value in {**batch, "predictions": predictions}.items()}
        kept = first["valid"] > 0
        return {name: values[kept] for name, values in first.items()}


def named_test(results: dict[str, Any]) -> dict[str, Any]:
    """Return results with `test_` instead of `eval_` in their names."""
    return {name.replace("eval_", "test_"): value for name, value in results.items()}


def use_best(loop: Loop, results: dict[str, Any]) -> bool:
    """Replace the state of a finished loop by the best checkpoint, if it is better. Return whether it is replaced.

    `results` are of the last step. Training cannot continue afterwards.
    """
    backend, state, score = loop.backend, loop.state, loop.recipe.task.score
    last, found = state.progress.step, score.goodness(float(np.float32(results[f"eval_{score.name}"])))
    seen = backend.mean(not found >= state.progress.best and saved_steps(loop.store.best)[-1:] not in ([], [last]))
    if seen == 0:
        return False
    # The other processes may not see the files of the chief.
    values = loop.store.restore(state.specs(), best=True) if seen == 1 else None
    if backend.mean(values is None) > 0 or values is None:
        logging.warning("Step %d is used, because the best checkpoint cannot be read by every process.", last)
        return False
    state.assign(values)
    logging.info("Step %d is used, the best of the validation. --checkpoint=last: step %d", state.progress.step, last)
    return True


def evaluate_chosen(loop: Loop, results: dict[str, Any], test: Validation | None) -> None:
    """Choose the best weights after the last step, evaluate them on the test split, and write the metrics.

    `results` are of the last step. If its weights are not chosen, the evaluations of the loop are repeated.
    """
    last, lines = loop.state.progress.step, list[dict[str, Any]]()
    again, step = loop.evaluators if use_best(loop, results) else (), loop.state.progress.step
    with data_errors.image_errors(SKIP_ADVICE):
        for evaluation in (*again, *filter(None, [test])):
            lines += evaluation(step, True)
    own = [(step, line["split"]) for line in lines if "split" in line]
    written = read_metrics(loop.directory) if loop.directory else []
    known = [(line["step"], line["split"]) for line in written if "split" in line]
    if own and known[-len(own) :] != own:  # otherwise, the run was finished before
        with contextlib.closing(MetricsWriter(loop.directory, last, loop.track)) as writer:
            for line in lines:
                writer.write(step, {**line, "last_step": last})
