"""The training loop: steps on the devices, and between them logging, evaluation and checkpoints."""

import contextlib
import math
import os
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit import distribute
from keras_vit import recipe as recipes
from keras_vit.data import errors as data_errors
from keras_vit.training.checkpoints import CheckpointStore
from keras_vit.training.errors import Diverged, Interrupted, UnreadableInput
from keras_vit.training.preemption import StopRequest
from keras_vit.training.progress import MetricsWriter, ProgressBar, duration
from keras_vit.training.run_directory import TENSORBOARD
from keras_vit.training.state import TrainState
from keras_vit.training.step import METRICS

_SECONDS_PER_CALL = 2.0  # how long the devices run before Python looks at signals and draws the bar
_PROFILED_STEPS = 5


class Loop:
    """Runs a recipe from where its state is to the end.

    Args:
        recipe: of the run.
        strategy: of the run.
        state: made in the strategy's scope; restored by the caller.
        step: the training step, see `TrainStep`.
        batches: function of a first step to the distributed dataset that begins there.
        evaluate: function without arguments to a dictionary with `"eval_accuracy"`; None never evaluates.
        store: where checkpoints go.
        directory: where metrics go; None (on workers other than the chief) writes none.
        profile: whether to write a TensorFlow profile of a few steps.
        evaluators: further evaluations, as `keras_vit.evaluators.Scheduled` gives them; None for none.
    """

    def __init__(
        self,
        recipe: recipes.Recipe,
        strategy: tf.distribute.Strategy,
        state: TrainState,
        step: Callable,
        batches: Callable,
        evaluate: Callable | None,
        store: CheckpointStore,
        directory: str | None,
        profile: bool = False,
        evaluators: Callable | None = None,
    ):
        self.recipe, self.strategy, self.state, self.store = recipe, strategy, state, store
        self.batches, self.evaluate, self.directory, self.profile = batches, evaluate, directory, profile
        self.evaluators = evaluators
        self.several_workers = self._has_several_workers()
        self.run_steps = self._steps_function(step)
        self.images_per_second = 0.0

    def run(self, stop: StopRequest | None = None) -> dict:
        """Train to `recipe.total_steps`.

        Args:
            stop: Stop request of the caller; None listens to signals within this call.

        Returns:
            The last evaluation's results.

        Raises:
            Interrupted: After saving, if SIGTERM or SIGINT came.
            Diverged: If the loss is not finite; the last checkpoint is from before.
            UnreadableInput: If an image cannot be read.
            StorageError: If a checkpoint or the metrics cannot be written.
        """
        try:
            with contextlib.nullcontext(stop) if stop is not None else StopRequest() as stop:
                stop.defer()
                return self._run(stop)
        except tf.errors.InvalidArgumentError as error:
            unreadable = data_errors.explain(error)
            if unreadable is None:
                raise
            raise UnreadableInput(
                f"{unreadable}. Repair or remove it, or skip such images with --config.data.on_bad_image=skip"
            ) from error

    def _run(self, stop: StopRequest) -> dict:
        step, total = int(self.state.step.numpy()), self.recipe.total_steps
        results = {}
        if step >= total:
            return self._evaluate(step)
        iterator = iter(self.batches(step))
        writer = MetricsWriter(self.directory, step) if self.directory else None
        bar = ProgressBar(step, total)
        speed = _Speed(self.recipe.data.batch_size)
        while step < total:
            count = self._next_count(step, speed)
            started = time.monotonic()
            with self._profiler(speed.calls):
                history, stopping = self._call(iterator, step, count, bool(stop))
            speed.add(count, time.monotonic() - started)
            self._check_finite(history, step)
            step += count
            self.state.step.assign(step)
            window = self._add_to_window(history)
            bar.update(step, window["loss"], window["accuracy"], speed.images_per_second)

            if step == total or _is_due(step, self.recipe.log_every):
                bar.clear()
                self._log(writer, step, window, history[-1], speed)
            evaluated = self.evaluate is not None and (step == total or _is_due(step, self.recipe.eval_every))
            if evaluated:
                bar.clear()
                results = self._evaluate(step, writer)
            if self.evaluators is not None and self.evaluators.due(step):
                bar.clear()
                for values in self.evaluators(step):
                    if writer:
                        writer.write(step, values)
            best = evaluated and results["eval_accuracy"] > float(self.state.best.numpy())
            if best:
                self.state.best.assign(results["eval_accuracy"])
            if best or stopping or step == total or _is_due(step, self.recipe.checkpoint_every):
                self.store.save(best=best)
            if stopping and step < total:
                bar.clear()
                raise Interrupted(
                    f"Stopped by {stop.signal or 'another worker'} at step {step} of {total}; the state is saved. "
                    "Start the same command again to go on."
                )
        if writer:
            writer.close()
        return results

    def _has_several_workers(self) -> bool:
        return distribute.is_multi_worker(self.strategy)

    def _profile(self, path: str):
        return tf.profiler.experimental.Profile(path)

    def _steps_function(self, step: Callable) -> Callable:
        """Returns the compiled function that runs a number of steps and returns `METRICS` of each, `[count, 4]`."""
        strategy = self.strategy
        # Autograph is for the loop below. To read the step with it as well takes longer than to trace it.
        step = tf.autograph.experimental.do_not_convert(step)

        @tf.function
        def run_steps(iterator, first, count, stop):
            history = tf.TensorArray(tf.float32, size=count, element_shape=[len(METRICS)])
            for index in tf.range(count):
                values = strategy.run(step, args=(next(iterator), first + tf.cast(index, tf.int64)))
                history = history.write(index, strategy.experimental_local_results(values)[0])
            if self.several_workers:  # all stop together if one has to
                stop = strategy.reduce("SUM", strategy.run(lambda: stop), axis=None)
            return history.stack(), stop

        return run_steps

    def _call(self, iterator, step: int, count: int, stop: bool) -> tuple[np.ndarray, bool]:
        # Tensors, not numbers: another count or step must not trace the function again.
        first, count = tf.constant(step, tf.int64), tf.constant(count, tf.int32)
        history, stop = self.run_steps(iterator, first, count, tf.constant(float(stop)))
        return history.numpy(), bool(stop.numpy() > 0)

    def _profiler(self, calls: int):
        """Returns a context that profiles the call after the one that compiles, if asked to."""
        if not (self.profile and self.directory and calls == 1):
            return contextlib.nullcontext()
        path = os.path.join(self.directory, TENSORBOARD)
        logging.info("Profiling a few steps into %s", path)
        return self._profile(path)

    def _next_count(self, step: int, speed: "_Speed") -> int:
        """Returns how many steps to run before the next thing to do; never changes what is computed."""
        recipe = self.recipe
        intervals = [recipe.log_every, recipe.eval_every, recipe.checkpoint_every]
        intervals += self.evaluators.intervals() if self.evaluators else []
        due = [every - step % every for every in intervals if every]
        count = min(recipe.total_steps - step, recipe.steps_per_loop, *due)
        if self.several_workers:  # the same number in every worker, whatever its clock says
            return count
        longest = _PROFILED_STEPS if self.profile and speed.calls == 1 else speed.steps_in(_SECONDS_PER_CALL)
        return max(1, min(count, longest))

    def _check_finite(self, history: np.ndarray, step: int) -> None:
        wrong = np.flatnonzero(~np.isfinite(history[:, :3]).all(axis=1))
        if wrong.size:
            loss, _, norm, rate = history[wrong[0]]
            saved = self.store.newest()
            raise Diverged(
                f"The loss is {loss} and the gradient's norm {norm} in step {step + int(wrong[0]) + 1}, at learning "
                f"rate {rate:.3g}. The last good checkpoint is {saved or 'not there yet'}. Try a smaller "
                "optim.learning_rate, a longer optim.schedule.warmup_steps or optim.clip_norm=1."
            )

    def _add_to_window(self, history: np.ndarray) -> dict:
        """Adds steps to the sums since the last logged line, and returns the means."""
        window = self.state.window.numpy()
        for loss, accuracy, _, _ in history:  # one by one: the same sums however the steps were grouped
            window += np.asarray([loss, accuracy, 1], np.float32)
        self.state.window.assign(window)
        return {"loss": float(window[0] / window[2]), "accuracy": float(window[1] / window[2])}

    def _log(self, writer, step: int, window: dict, last: np.ndarray, speed: "_Speed") -> None:
        self.state.window.assign(np.zeros(3, np.float32))
        if writer is None:
            return
        last = dict(zip(METRICS, last.tolist(), strict=True))
        values = {
            **window,
            "learning_rate": last["learning_rate"],
            "grad_norm": last["grad_norm"],
            "images_per_second": round(speed.images_per_second, 1),
        }
        writer.write(step, values)
        logging.info(
            "step %d/%d loss %.4f accuracy %.3f rate %.3g %.0f images/s, %s left",
            step,
            self.recipe.total_steps,
            window["loss"],
            window["accuracy"],
            last["learning_rate"],
            speed.images_per_second,
            duration(speed.seconds_for(self.recipe.total_steps - step)),
        )

    def _evaluate(self, step: int, writer=None) -> dict:
        if self.evaluate is None:
            return {}
        results = self.evaluate()
        if writer:
            writer.write(step, results)
        logging.info(
            "step %d: %s accuracy %.4f loss %.4f on %d examples",
            step,
            results["split"],
            results["eval_accuracy"],
            results["eval_loss"],
            results["examples"],
        )
        return results


class _Speed:
    """Steps per second, smoothed; the first call, which compiles, does not count once there is another."""

    def __init__(self, batch_size: int):
        self.batch_size = batch_size
        self.seconds_per_step = None
        self.calls = 0

    def add(self, steps: int, seconds: float) -> None:
        new, self.calls = seconds / steps, self.calls + 1
        keep = 0.0 if self.calls <= 2 else 0.7
        self.seconds_per_step = new if not keep else keep * self.seconds_per_step + (1 - keep) * new

    def steps_in(self, seconds: float) -> int:
        return 1 if self.seconds_per_step is None else math.floor(seconds / self.seconds_per_step)

    def seconds_for(self, steps: int) -> float | None:
        return None if self.seconds_per_step is None else steps * self.seconds_per_step

    @property
    def images_per_second(self) -> float:
        return self.batch_size / self.seconds_per_step if self.seconds_per_step else 0.0


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
