"""Training loop: runs steps on the devices, and logs, evaluates and saves checkpoints between them."""

import contextlib
import dataclasses
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from absl import logging

from keras_vit import recipe as recipes
from keras_vit.data import errors as data_errors
from keras_vit.runs.checkpoints import CheckpointStore, saved_steps
from keras_vit.runs.errors import Diverged, Interrupted
from keras_vit.runs.run_directory import TENSORBOARD, read_metrics
from keras_vit.training.backend import Backend, RunSteps
from keras_vit.training.joining import limited
from keras_vit.training.metrics import MetricsWriter
from keras_vit.training.run_data import SKIP_ADVICE
from keras_vit.training.speed import Speed
from keras_vit.training.state import BaseState
from keras_vit.util.progress import Progress, duration
from keras_vit.util.signals import Stopped, StopRequest

_SECONDS_PER_CALL = 2.0  # maximum time between two checks for signals and updates of the progress bar
_PROFILED_STEPS = 5


class PeriodicEvaluation(Protocol):
    """Evaluation that runs at regular intervals and after the last step."""

    def intervals(self) -> list[int]:
        """Return the intervals in steps. The evaluation runs at every multiple of an interval other than 0."""

    def __call__(self, step: int, last: bool) -> Iterable[dict[str, Any]]:
        """Evaluate and yield lines of metrics. `last` is True after the last step.

        The score of the validation, such as `"eval_accuracy"`, selects the best checkpoint and triggers early stopping.
        """


@dataclasses.dataclass
class Loop:
    """Training of a recipe from the current step of its state to the end."""

    recipe: recipes.Recipe
    backend: Backend
    state: BaseState  # restored by the caller
    run_steps: RunSteps
    batches: Callable[[int], Iterable[Any]]  # maps a step to the batches from that step on
    store: CheckpointStore
    evaluators: Sequence[PeriodicEvaluation] = ()  # the first evaluation is the validation
    directory: str | None = None  # run directory on the chief; None on other workers, which write no metrics
    profile: bool = False  # whether to write a profile of a few steps
    track: Sequence[str] = ("tensorboard",)  # names of trackers
    plan: Callable[[], recipes.Recipe] | None = None  # returns the recipe with the steps that fit into its time

    def run(self, stop: StopRequest | None = None) -> dict[str, Any]:
        """Train up to `recipe.total_steps` and return the last line of the validation.

        A finished run is only validated again. Without `stop`, the loop listens for signals itself. An early end raises
        an exception of `runs.errors`.
        """
        progress, total = self.state.progress, self.recipe.total_steps
        pending = self._is_evaluation_missing()
        if not pending and (progress.step >= total or self._is_stale()):
            return next((line for evaluator in self.evaluators[:1] for line in evaluator(progress.step, True)), {})
        with (
            contextlib.nullcontext(stop) if stop is not None else StopRequest(Interrupted.exit_code) as stop,
            contextlib.closing(MetricsWriter(self.directory, progress.step, self.track)) as writer,
            self._written(),
            data_errors.image_errors(SKIP_ADVICE),
        ):
            stop.listen()
            if self.backend.num_workers > 1:
                stop.defer()  # all processes stop after the same step
            results, last = self._begin(stop, writer, pending)
            if not last:
                results = self._run(stop, writer)
            self._release(stop)
            return results

    def _begin(self, stop: StopRequest, writer: MetricsWriter, pending: bool) -> tuple[dict[str, Any], bool]:
        """Run a missing evaluation and plan the steps. Returns the line of the validation and whether training ends."""
        progress, results, last = self.state.progress, dict[str, Any](), False
        if pending:  # a head was fitted, or a signal interrupted the evaluation of this step
            stop.defer()
            at_start = not progress.step and self.recipe.total_steps
            results, best, last = self._evaluate(stop, writer, self.evaluators[:1] if at_start else self.evaluators)
            self._save(best)
            self._release(stop)
        if self.plan and not last:
            self.recipe = self.plan()
            last = progress.step == self.recipe.total_steps
            if last:  # the fitted head is the result
                found, best, _ = self._evaluate(stop, writer, self.evaluators[1:] if results else self.evaluators)
                results = results or found
                self._save(best)
        return results, last

    def _run(self, stop: StopRequest, writer: MetricsWriter) -> dict[str, Any]:
        progress, speed = self.state.progress, Speed(self.recipe.data.batch_size)
        results, last = dict[str, Any](), False
        with Progress("Preparing the first batch"):
            iterator = iter(self.batches(progress.step))
        with Progress("step", self.recipe.total_steps, unit="steps") as bar:
            while not last:
                count = self._next_count(progress.step, speed)
                if speed.calls:
                    stop.defer("the current step", speed.seconds_for(count) or 0.0)
                history = self._call(iterator, count, speed)
                stop.defer()  # the new steps must be saved first
                progress.step += count
                means = self._add_to_window(history)
                bar.update(progress.step, self._details(means, speed))

                logged = self._is_due(self.recipe.log_every)
                if logged:
                    self._log(writer, means, history, speed)
                    bar.postpone()
                results, best, last = self._evaluate(stop, writer, self.evaluators)
                if last and not logged:  # early stopping
                    self._log(writer, means, history, speed)
                saved = best or last or self._is_due(self.recipe.checkpoint_every)
                if saved:
                    self._save(best)
                if not last and self.backend.mean(bool(stop)) > 0:  # a signal in one process stops all processes
                    if not saved:
                        self._save(best=False)
                    raise self._interrupted(stop)
        return results

    def _call(self, iterator: Iterator[Any], count: int, speed: Speed) -> dict[str, np.ndarray]:
        """Run some steps on the devices, and return their metrics."""
        step, started = self.state.progress.step, time.monotonic()
        limit = limited(step) if self.backend.num_workers > 1 else contextlib.nullcontext()
        waiting = limit if speed.calls else Progress("Compiling and running the first step")
        with waiting, self._profiler(speed.calls):
            history = self.run_steps(iterator, step, count)
        seconds = time.monotonic() - started
        speed.add(count, seconds)
        self._check_finite(history, step)
        return history

    def _release(self, stop: StopRequest) -> None:
        """Let signals end the program at once, unless several processes have to stop together."""
        if self.backend.num_workers == 1:
            stop.release()

    def _interrupted(self, stop: StopRequest) -> Interrupted:
        by, step = stop.signal or "another worker", self.state.progress.step
        return Interrupted(
            f"Stopped by {by} at step {step} of {self.recipe.total_steps}; the state is saved. Start the same command "
            "again to resume."
        )

    def _next_count(self, step: int, speed: Speed) -> int:
        """Return the number of steps to run before the next log line, evaluation or checkpoint.

        The number does not affect the results.
        """
        recipe = self.recipe
        of_evaluators = (evaluator.intervals() for evaluator in self.evaluators)
        intervals = [recipe.log_every, recipe.checkpoint_every, *itertools.chain(*of_evaluators)]
        due = [every - step % every for every in intervals if every]
        count = min(recipe.total_steps - step, recipe.steps_per_loop, *due)
        longest = _PROFILED_STEPS if self.profile and speed.calls == 1 else speed.steps_in(_SECONDS_PER_CALL)
        # The mean makes the number equal in all workers, although their clocks differ.
        return max(1, math.floor(self.backend.mean(min(count, longest))))

    def _is_due(self, *intervals: int) -> bool:
        step = self.state.progress.step
        return step == self.recipe.total_steps or any(every > 0 and step % every == 0 for every in intervals)

    def _evaluate(
        self, stop: StopRequest, writer: MetricsWriter, evaluators: Sequence[PeriodicEvaluation]
    ) -> tuple[dict[str, Any], bool, bool]:
        """Run the evaluations that are due, at step 0 all of them.

        Returns the line of the validation, whether its score is the best so far, and whether training ends. A signal
        saves the state without the metrics of this step; the resumed run repeats the evaluation.
        """
        progress, score = self.state.progress, self.recipe.task.score
        name, results, best, lines = f"eval_{score.name}", dict[str, Any](), False, list[dict[str, Any]]()
        last = progress.step == self.recipe.total_steps
        try:
            with stop.interruptible() if self.backend.num_workers == 1 else contextlib.nullcontext():
                for evaluator in evaluators:
                    if progress.step and not last and not self._is_due(*evaluator.intervals()):
                        continue
                    for line in evaluator(progress.step, last):
                        lines.append(line)
                        if name in line:
                            results, best = line, score.goodness(line[name]) > progress.best
                            last = last or (not best and self._is_stale())  # the other evaluators then run as well
        except Stopped:
            self._save(best=False)
            raise self._interrupted(stop) from None
        for line in lines:
            writer.write(progress.step, line)
        if last and progress.step < self.recipe.total_steps:
            text = "Training ends at step %d: the last %d evaluations did not improve the %s (--config.patience)"
            logging.info(text, progress.step, self.recipe.patience, score.name)
        if best:
            progress.best = score.goodness(float(np.float32(results[name])))
        return results, best, last

    def _is_evaluation_missing(self) -> bool:
        """Return whether the step at which the run starts or resumes must be evaluated and was not.

        Step 0 of a fitted head must be evaluated, except by an evaluation that only runs at the end.
        """
        step, intervals = self.state.progress.step, self.evaluators[0].intervals() if self.evaluators else []
        of_head = self.recipe.head_images and (intervals or not self.recipe.total_steps)
        due = self._is_due(*intervals) if step else of_head
        if not due or not self.evaluators:
            return False
        name = f"eval_{self.recipe.task.score.name}"
        lines = read_metrics(self.directory) if self.directory else [{"step": step, name: 0}]
        missing = not any(name in line for line in lines if line["step"] == step)
        missing |= not step and self.store.newest() is None  # the fitted head was not saved
        return self.backend.mean(missing) > 0  # only the chief reads the metrics; the other processes follow

    def _is_stale(self) -> bool:
        """Return whether there is a best checkpoint, and it is at least `patience` evaluations old."""
        steps, step = self.recipe.patience * self.recipe.eval_every, self.state.progress.step
        if not steps or step % self.recipe.eval_every:
            return False
        self.store.wait()
        age = step - max((saved for saved in saved_steps(self.store.best) if saved <= step), default=step)
        # All processes follow the chief, because the others may not see its files.
        return self.backend.mean(self.directory is not None and age >= steps) > 0

    def _save(self, best: bool) -> None:
        try:
            self.store.save(self.state.values(self.store.whole_arrays), best)
        finally:
            if self.store.whole_arrays:
                self.backend.wait()  # no process continues or exits while the chief writes

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Wait for the checkpoints when a run ends, except after errors that may have ended the other workers."""
        try:
            yield
        except Exception as error:
            if self.backend.num_workers == 1 or isinstance(error, Diverged | Interrupted):
                self.store.wait()
            raise
        self.store.wait()

    def _profiler(self, calls: int) -> contextlib.AbstractContextManager:
        """Return a context that profiles the second call, if profiling is enabled. The first call compiles."""
        if not (self.profile and self.directory and calls == 1):
            return contextlib.nullcontext()
        path = os.path.join(self.directory, TENSORBOARD)
        logging.info("Profiling a few steps into %s", path)
        return self.backend.profile(path)

    def _check_finite(self, history: dict[str, np.ndarray], step: int) -> None:
        wrong = np.flatnonzero(~np.isfinite(sum(history.values())))
        if wrong.size:
            self.store.wait()
            loss, norm, rate = (history[name][wrong[0]] for name in ("loss", "grad_norm", "learning_rate"))
            raise Diverged(
                f"The loss is {loss} and the gradient's norm {norm} in step {step + int(wrong[0]) + 1}, at learning "
                f"rate {rate:.3g}. The last good checkpoint is {self.store.newest() or 'not written yet'}. Try a "
                "smaller optim.learning_rate, a longer optim.schedule.warmup_steps or optim.clip_norm=1."
            )

    def _add_to_window(self, history: dict[str, np.ndarray]) -> dict[str, float]:
        """Add steps to the sums since the last log line, and return the means of the task's metrics."""
        window = self.state.progress.window
        names = [metric.name for metric in self.recipe.task.step_metrics]
        for values in zip(*(history[name] for name in names), strict=True):  # sums must not depend on the grouping
            window += np.asarray([*values, 1], np.float32)
        return {name: float(total / window[-1]) for name, total in zip(names, window, strict=False)}

    def _log(
        self, writer: MetricsWriter, means: dict[str, float], history: dict[str, np.ndarray], speed: Speed
    ) -> None:
        progress, total = self.state.progress, self.recipe.total_steps
        progress.window = np.zeros_like(progress.window)
        if not self.directory:
            return
        numbers = {name: float(history[name][-1]) for name in ("learning_rate", "grad_norm")}
        writer.write(progress.step, {**means, **numbers, "images_per_second": round(speed.images_per_second, 1)})
        details = [*self._details(means, speed), f"rate {numbers['learning_rate']:.3g}"]
        logging.info("step %d/%d, %s", progress.step, total, ", ".join(details))

    def _details(self, means: dict[str, float], speed: Speed) -> list[str]:
        """Return metrics, remaining time and speed as text."""
        left = speed.seconds_for(self.recipe.total_steps - self.state.progress.step)
        results = [f"{name} {value:.4f}" for name, value in means.items()]
        bound = "at most " if speed.calls == 1 else ""  # the first call compiles
        return [*results, f"{bound}{duration(left)} left", f"{speed.images_per_second:,.0f} images/s"]
