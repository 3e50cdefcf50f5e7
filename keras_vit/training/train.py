"""Complete training run, for the program `keras-vit train` and for `keras_vit.fine_tune`."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from keras_vit import evaluators
from keras_vit import recipe as recipes
from keras_vit.data import Source
from keras_vit.inference import FunctionPredictor, ModelCard
from keras_vit.runs import errors, restarts, run_directory
from keras_vit.training import backend as backends
from keras_vit.training import budget, create, fitted_head, run_summary, trackers
from keras_vit.training.loop import Loop
from keras_vit.training.planning import memory
from keras_vit.training.run import TrainingRun
from keras_vit.training.run_data import RunData
from keras_vit.training.validation import Validation, evaluate_chosen, named_test
from keras_vit.util import file_io, locks, logs, signals, storage
from keras_vit.util.progress import Progress


def train(
    recipe: recipes.Recipe,
    workdir: str,
    *,
    change_recipe: bool = False,
    profile: bool = False,
    track: Sequence[str] = ("tensorboard",),
    show: Callable[[str], object] = print,
    **devices: Any,
) -> dict[str, Any]:
    """Train a recipe to its end, resuming from the last checkpoint in the run directory if there is one.

    Args:
        recipe: The recipe.
        workdir: The run directory, or its URL in a bucket.
        change_recipe: Whether to resume a run even if its recipe or data have changed.
        profile: Whether to write a profile of a few steps for TensorBoard.
        track: Names of trackers of the metrics; see `keras_vit.training.trackers`.
        show: Function that receives the report at the end.
        **devices: Arguments of `keras_vit.training.create.create`, such as `distribute="one_device"`.

    Returns:
        The results of the chosen weights by name.
    """
    for package in set(track) - {"tensorboard"}:
        trackers.require(package)  # raises an error before the slow start
    restarts.check(workdir)
    with signals.StopRequest(errors.Interrupted.exit_code) as stop:
        backend = create.create(recipe, **devices)
        stop.listen()  # with several processes, TensorFlow and JAX replace the handler of SIGTERM
        logging.info("%s; %s", backend.describe(), recipe.precision)
        logging.info("Run directory: %s", workdir)
        with (
            storage.written(workdir, "--workdir", writes=backend.is_chief) as directory,
            locks.locked(directory if backend.is_chief else None),
        ):
            logs.log_to(directory, backend.worker)
            return train_on(backend, recipe, directory, stop, change_recipe, profile, track, show)


def train_on(
    backend: backends.Backend,
    recipe: recipes.Recipe,
    workdir: str,
    stop: signals.StopRequest,
    change_recipe: bool,
    profile: bool,
    track: Sequence[str],
    show: Callable[[str], object],
) -> dict[str, Any]:
    """Train on the devices of a backend; see `train`."""
    started = time.monotonic()
    # Data: the batches of a step depend only on the recipe and the step
    with Progress(f"Preparing {recipe.data.source}"):
        data = RunData(recipe, backend)
    logging.info("%s", data.summary())

    # Run: a new run, or the run in the directory if its recipe and data are the same
    run = TrainingRun(workdir, recipe, data, change_recipe)
    recipe = run.recipe  # with the architecture of its initial weights
    reason = fitted_head.reason_against(recipe, backend, data.task) if recipe.head_images else None
    if reason:
        logging.info("The head is trained from its initial weights, and not fitted to features: %s.", reason)
        recipe = run.set_fields(fitted_head.without(recipe, data))

    # Model: from the last checkpoint, or with its initial weights and a head that is fitted to features
    memory.check(recipe, backend, data.task.outputs, data.channels)
    state = backend.create_state(recipe, data.task, data.channels)
    run.begin(state)
    seconds_per_image = None
    if recipe.head_images and run.step is None:
        seconds_per_image = fitted_head.fit(state, backend, data, workdir, run.files["splits"][data.train.split])

    # Training: `loop.run` runs the steps, and logs, evaluates and saves between them
    evaluate = backend.compile_evaluation(state)

    def validation_of(split: Source, test_split: str | None = None) -> Validation:
        num_batches = math.ceil(split.num_examples / data.eval_batch_size)
        return Validation(backend, data.task, evaluate, data.eval_batches(split), num_batches, test_split)

    validation = validation_of(data.eval)
    test = None if data.test is None else validation_of(data.test, recipe.data.test_split)
    between: list[Any] = [validation]
    scheduled = None
    if recipe.evaluators:
        scheduled = scheduled_evaluators(recipe, backend, state, data)
        between.append(scheduled)
    run_steps = backend.compile_steps(state, recipe)

    def planned() -> recipes.Recipe:
        """Return the recipe with as many steps as fit into the time."""
        fields = budget.fields(recipe, backend, data, state, run_steps, started, seconds_per_image)
        new = run.set_fields(fields)
        state.use_schedule(new)
        if scheduled:
            scheduled.every = new.eval_every
        run.record()
        return new

    loop = Loop(
        recipe,
        backend,
        state,
        run_steps,
        data.train_batches,
        run.store,
        between,
        directory=workdir if backend.is_chief else None,
        profile=profile,
        track=track,
        plan=planned if recipe.time and recipe.total_steps and not state.progress.step else None,
    )
    results = loop.run(stop)

    # The chosen model and the report. The test split is only read here
    evaluate_chosen(loop, results, test)
    results, reported = validation.results, test or validation
    state.use_averages()
    if backend.is_chief:
        run_directory.save_model(state.model, workdir, run.given.model.weights)
        with Progress(f"Drawing {run_directory.REPORT}"):
            run_summary.draw_figure(run.recipe, workdir, reported)
        show(file_io.shown(run_summary.report_text(workdir, results, reported)))
        if scheduled and scheduled.last:
            show(f"\n{evaluators.results_table.table(scheduled.last)}")
    if scheduled and scheduled.failed:
        raise errors.EvaluatorFailed(
            f"Training is complete and the model is saved, but evaluators failed: {', '.join(scheduled.failed)}. Their "
            f"errors are in the log. After correcting them: keras-vit evaluate --model={workdir} --evaluators=..."
        )
    return {**named_test(test.results), **results} if test else results


def scheduled_evaluators(
    recipe: recipes.Recipe,
    backend: backends.Backend,
    state: backends.BaseState,
    data: RunData,
) -> evaluators.Scheduled:
    """Return the evaluators of the recipe. Each evaluation uses the current weights.

    All of their data are opened now, so that an error ends the program before training starts.
    """
    output, shape = recipe.task.output(recipe), state.model.config.image_shape
    values = state.model.values.to_dict() if state.model.values else {}
    card = ModelCard(data.train.class_names, recipe.data.pp_eval, output, shape, values=values)
    context = evaluators.Context(
        FunctionPredictor(card, backend.compile_forward(state)),
        evaluators.split_opener(data.eval_batch_size, recipe.data.on_bad_image),
        recipe.data.source,
        recipe.data.train_split,
        recipe.data.eval_split,
    )
    return evaluators.Scheduled(evaluators.Suite(recipe.evaluators), context, recipe.eval_every)
