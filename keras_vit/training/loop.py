"""The training loop: steps on the devices, and between them logging, evaluation and checkpoints."""

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
from keras_vit._progress import Progress, duration
from keras_vit._signals import Stopped
from keras_vit.data import errors as data_errors
from keras_vit.training.backend import Backend, RunSteps
from keras_vit.training.checkpoints import CheckpointStore, saved_steps
from keras_vit.training.errors import Diverged, Interrupted
from keras_vit.training.metrics import MetricsWriter
from keras_vit.training.preemption import StopRequest
from keras_vit.training.run_directory import TENSORBOARD, read_metrics
from keras_vit.training.speed import Speed
from keras_vit.training.state import BaseState
from keras_vit.training.waiting import STEP, Watch

_SECONDS_PER_CALL = 2.0  # how long the devices run before Python looks at signals and draws the bar
_PROFILED_STEPS = 5


class PeriodicEvaluation(Protocol):
    """An evaluation that runs at intervals of steps, and after the last step."""

    def intervals(self) -> list[int]:
        """Return numbers of steps at whose multiples it runs; 0 for the end only."""

    def __call__(self, step: int, last: bool) -> Iterable[dict[str, Any]]:
        """Yield lines of metrics; `last` after the last step.

        The validation's score (`"eval_accuracy"`) decides about the best checkpoint and an early end.
        """


@dataclasses.dataclass
class Loop:
    """A recipe that is run from the current step of its state to the end."""

    recipe: recipes.Recipe
    backend: Backend
    state: BaseState  # restored by the caller
    run_steps: RunSteps
    batches: Callable[[int], Iterable[Any]]  # function of a step to the batches that begin there
    store: CheckpointStore
    evaluators: Sequence[PeriodicEvaluation] = ()  # the first one is the validation
    directory: str | None = None  # run directory; None, on workers other than the chief, writes no metrics
    profile: bool = False  # whether to write a profile of a few steps
    track: Sequence[str] = ("tensorboard",)  # names of trackers
    read: Callable[[], int] | None = None  # of several workers: first step whose batch this process has not read

    def run(self, stop: StopRequest | None = None) -> dict[str, Any]:
        """Train to `recipe.total_steps`, and return the last line of the validation; a finished run is validated again.

        Without `stop`, it listens to signals itself. It ends early with one of the exceptions of `training.errors`.
        """
        progress, total = self.state.progress, self.recipe.total_steps
        pending = self._is_evaluation_missing()
        if not pending and (progress.step >= total or self._is_stale()):
            return next((line for evaluator in self.evaluators[:1] for line in evaluator(progress.step, True)), {})
        with (
            contextlib.nullcontext(stop) if stop is not None else StopRequest() as stop,
            contextlib.closing(MetricsWriter(self.directory, progress.step, self.track)) as writer,
            self._written(),
            Progress("step", total, unit="steps") as bar,
            contextlib.closing(Watch(self._awaited, *STEP, enabled=self.backend.num_workers > 1)) as watch,
            data_errors.image_errors("Repair or remove it, or skip it with --config.data.on_bad_image=skip"),
        ):
            stop.listen()
            if self.backend.num_workers > 1:
                stop.defer()  # the processes stop together, after a step
            return self._run(stop, writer, bar, watch, pending)

    def _run(
        self, stop: StopRequest, writer: MetricsWriter, bar: Progress, watch: Watch, pending: bool
    ) -> dict[str, Any]:
        progress = self.state.progress
        with Progress("Preparing the first batch"):
            iterator = iter(self.batches(progress.step))
        speed = Speed(self.recipe.data.batch_size)
        results, last = dict[str, Any](), False
        if pending:  # a signal came during the evaluation of this step
            stop.defer()
            results, best, last = self._evaluate(stop, writer)
            self._save(best)
            self._release(stop)
        while not last:
            count = self._next_count(progress.step, speed)
            if speed.calls:
                stop.defer("the step that runs", speed.seconds_for(count) or 0.0)
            history = self._call(iterator, count, speed, watch)
            stop.defer()  # now there is something to save
            progress.step += count
            means = self._add_to_window(history)
            bar.update(progress.step, self._details(means, speed))

            logged = self._is_due(self.recipe.log_every)
            if logged:
                self._log(writer, means, history, speed)
                bar.postpone()
            results, best, last = self._evaluate(stop, writer)
            if last and not logged:  # an early end
                self._log(writer, means, history, speed)
            saved = best or last or self._is_due(self.recipe.checkpoint_every)
            if saved:
                self._save(best)
            if not last and self.backend.mean(bool(stop)) > 0:  # all processes, if one has to
                if not saved:
                    self._save(best=False)
                raise self._interrupted(stop)
        self._release(stop)
        return results

    def _call(self, iterator: Iterator[Any], count: int, speed: Speed, watch: Watch) -> dict[str, np.ndarray]:
        """Run some steps on the devices, and return their metrics."""
        step, started = self.state.progress.step, time.monotonic()
        waiting = watch.waiting() if speed.calls else Progress("Compiling and running the first step")
        with waiting, self._profiler(speed.calls):
            history = self.run_steps(iterator, step, count)
        seconds = time.monotonic() - started
        if speed.calls and self.read is not None:
            watch.note(seconds, starved=self.read() <= step + count)
        speed.add(count, seconds)
        self._check_finite(history, step)
        return history

    def _awaited(self) -> str:
        """Return what the steps that run wait for."""
        step, read = self.state.progress.step, self.read() if self.read is not None else None
        if read == step:
            return f"This worker has no batch for step {step + 1}: reading its data hangs."
        own = f" It has read the batches up to step {read}; a worker that has read fewer hangs." if read else ""
        return f"Another worker does not finish the steps from {step + 1} on; see its log.{own}"

    def _release(self, stop: StopRequest) -> None:
        """Let a signal end the program at once, unless several processes have to stop together."""
        if self.backend.num_workers == 1:
            stop.release()

    def _interrupted(self, stop: StopRequest) -> Interrupted:
        by, step = stop.signal or "another worker", self.state.progress.step
        return Interrupted(
            f"Stopped by {by} at step {step} of {self.recipe.total_steps}; the state is saved. Start the same command "
            "again to resume."
        )

    def _next_count(self, step: int, speed: Speed) -> int:
        """Return how many steps to run before the next thing to do. It never changes what is computed."""
        recipe = self.recipe
        of_evaluators = (evaluator.intervals() for evaluator in self.evaluators)
        intervals = [recipe.log_every, recipe.checkpoint_every, *itertools.chain(*of_evaluators)]
        due = [every - step % every for every in intervals if every]
        count = min(recipe.total_steps - step, recipe.steps_per_loop, *due)
        longest = _PROFILED_STEPS if self.profile and speed.calls == 1 else speed.steps_in(_SECONDS_PER_CALL)
        # The same number in every worker, whatever its clock says.
        return max(1, math.floor(self.backend.mean(min(count, longest))))

    def _is_due(self, *intervals: int) -> bool:
        step = self.state.progress.step
        return step == self.recipe.total_steps or any(every > 0 and step % every == 0 for every in intervals)

    def _evaluate(self, stop: StopRequest, writer: MetricsWriter) -> tuple[dict[str, Any], bool, bool]:
        """Run what is due; return the validation's line, whether its score is the best, and whether training ends.

        After a signal, the state is saved without the metrics of this step: the next start evaluates it again.
        """
        progress, score = self.state.progress, self.recipe.task.score
        name, results, best, lines = f"eval_{score.name}", dict[str, Any](), False, list[dict[str, Any]]()
        last = progress.step == self.recipe.total_steps
        try:
            with stop.interruptible() if self.backend.num_workers == 1 else contextlib.nullcontext():
                for evaluator in self.evaluators:
                    if not last and not self._is_due(*evaluator.intervals()):
                        continue
                    for line in evaluator(progress.step, last):
                        lines.append(line)
                        if name in line:
                            results, best = line, score.goodness(line[name]) > progress.best
                            last = last or (not best and self._is_stale())  # the others then run at the end, too
        except Stopped:
            self._save(best=False)
            raise self._interrupted(stop) from None
        for line in lines:
            writer.write(progress.step, line)
        if last and progress.step < self.recipe.total_steps:
            text = "Training ends at step %d: %d evaluations in a row brought no better %s (--config.stop_after)"
            logging.info(text, progress.step, self.recipe.stop_after, score.name)
        if best:
            progress.best = score.goodness(float(np.float32(results[name])))
        return results, best, last

    def _is_evaluation_missing(self) -> bool:
        """Return whether the run resumes after a step whose evaluation a signal interrupted."""
        step = self.state.progress.step
        if not step or not self.evaluators or not self._is_due(*self.evaluators[0].intervals()):
            return False
        name = f"eval_{self.recipe.task.score.name}"
        lines = read_metrics(self.directory) if self.directory else [{"step": step, name: 0}]
        missing = not any(name in line for line in lines if line["step"] == step)
        return self.backend.mean(missing) > 0  # all processes, if the one that writes says so

    def _is_stale(self) -> bool:
        """Return whether the last `stop_after` evaluations brought no better score: the best checkpoint is as old."""
        steps, step = self.recipe.stop_after * self.recipe.eval_every, self.state.progress.step
        if not steps or step % self.recipe.eval_every:
            return False
        age = step - max(saved_steps(self.store.best), default=0)
        # All processes, if the one that writes says so: others may not see its files.
        return self.backend.mean(self.directory is not None and age >= steps) > 0

    def _save(self, best: bool) -> None:
        try:
            self.store.save(self.state.values(self.store.whole_arrays), best)
        finally:
            if self.store.whole_arrays:
                self.backend.wait()  # no process continues, or ends, while one writes

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Wait for the checkpoints before a run ends, unless the other workers may be gone."""
        try:
            yield
        except (Diverged, Interrupted):
            self.store.wait()
            raise
        self.store.wait()

    def _profiler(self, calls: int) -> contextlib.AbstractContextManager:
        """Return a context that profiles the call after the one that compiles, if asked to."""
        if not (self.profile and self.directory and calls == 1):
            return contextlib.nullcontext()
        path = os.path.join(self.directory, TENSORBOARD)
        logging.info("Profiling a few steps into %s", path)
        return self.backend.profile(path)

    def _check_finite(self, history: dict[str, np.ndarray], step: int) -> None:
        wrong = np.flatnonzero(~np.isfinite(sum(history.values())))
        if wrong.size:
            loss, norm, rate = (history[name][wrong[0]] for name in ("loss", "grad_norm", "learning_rate"))
            raise Diverged(
                f"The loss is {loss} and the gradient's norm {norm} in step {step + int(wrong[0]) + 1}, at learning "
                f"rate {rate:.3g}. The last good checkpoint is {self.store.newest() or 'not there yet'}. Try a smaller "
                "optim.learning_rate, a longer optim.schedule.warmup_steps or optim.clip_norm=1."
            )

    def _add_to_window(self, history: dict[str, np.ndarray]) -> dict[str, float]:
        """Add steps to the sums since the last logged line, and return the means of the task's metrics."""
        window = self.state.progress.window
        names = [metric.name for metric in self.recipe.task.step_metrics]
        for values in zip(*(history[name] for name in names), strict=True):  # the same sums however steps were grouped
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
        """Return results, time and speed, for people who watch."""
        left = speed.seconds_for(self.recipe.total_steps - self.state.progress.step)
        results = [f"{name} {value:.4f}" for name, value in means.items()]
        bound = "at most " if speed.calls == 1 else ""  # the first call compiles
        return [*results, f"{bound}{duration(left)} left", f"{speed.images_per_second:,.0f} images/s"]
