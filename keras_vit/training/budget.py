"""Number of steps that fit into the time limit of a recipe, estimated from a few measured steps."""

import math
import time

import numpy as np
from absl import logging

from keras_vit import recipe as recipes
from keras_vit.training.backend import Backend, RunSteps
from keras_vit.training.planning import rules
from keras_vit.training.run_data import RunData
from keras_vit.training.state import BaseState
from keras_vit.util.progress import Progress, duration

_MEASURED_SECONDS = 3.0  # minimum duration of the measured steps
_FEWEST = 10  # steps, fewer of which leave a head that was not fitted almost random
# Share of the time for the steps, after the fixed costs. The evaluations process at most 0.4 times as many images, at
# twice the speed. The final model and the report also take time.
_SHARE = 0.8
_ADVICE = "reduce --image_size, or train only the head with --adapt=head."


def fields(
    recipe: recipes.Recipe,
    backend: Backend,
    data: RunData,
    state: BaseState,
    run_steps: RunSteps,
    started: float,
    seconds_per_image: float | None = None,
) -> rules.Fields:
    """Measure a few steps on these devices, and return the fields of a recipe that depend on its time limit.

    The state stays as it is. After a head was fitted, no steps are planned if fewer than `rules.MIN_STEPS` fit. If the
    forward pass alone takes too long, no step is compiled.

    `started` is the value of `time.monotonic()` at the start of the program. `seconds_per_image` are the seconds of the
    forward pass, if they are known.

    Raises:
        ValueError: If fewer than 10 steps fit, and the head was not fitted.
    """
    limit, size, is_fitted = recipe.time, recipe.data.batch_size, bool(recipe.head_images)
    least = (seconds_per_image or 0.0) * size * rules.forward_passes(recipe)
    left = limit - (time.monotonic() - started)
    if is_fitted and rules.MIN_STEPS * least > _SHARE * left:
        total = int(_SHARE * left / least) if least else 0  # no time is left
        return _head_only(recipe, data, total, f"at least {least:.3g}", limit - left + rules.MIN_STEPS * least / _SHARE)
    logging.info("Measuring a few steps, to plan for %s.", duration(limit))
    before, saved = time.monotonic(), {name: np.array(array) for name, array in state.values()}
    batches = iter(data.train_batches(0))
    with Progress("Compiling and running the first step"):
        run_steps(batches, 0, 1)
    compiled, count = time.monotonic(), 0
    with Progress("Measuring", unit="steps") as progress:
        # All processes run the same number of steps.
        while not count or backend.mean(time.monotonic() - compiled) < _MEASURED_SECONDS:
            count += 1
            run_steps(batches, count, 1)
            progress.add(1)
    seconds = backend.mean(time.monotonic() - compiled) / count
    state.assign(saved)
    # Without a fitted head, the evaluation is not compiled yet, which takes about as long. It runs at least once.
    evaluation = seconds / 2 * sum(split.num_examples for split in (data.eval, data.test) if split) / size
    not_compiled = 0.0 if is_fitted else compiled - before
    fixed = backend.mean(time.monotonic() - started + not_compiled) + evaluation
    total = int(_SHARE * (limit - fixed) / seconds)
    if is_fitted and total < rules.MIN_STEPS:
        return _head_only(recipe, data, total, f"{seconds:.3g}", fixed + rules.MIN_STEPS * seconds / _SHARE)
    costs = f"the start, the compilation and one evaluation take about {duration(fixed)}"
    if total < _FEWEST:
        needed = duration(math.ceil(fixed + _FEWEST * seconds / _SHARE))
        raise ValueError(
            f"The time must suffice for at least {_FEWEST} steps. Received: {duration(limit)}, for "
            f"{max(0, total)} steps of {seconds:.3g} s: {costs}. Increase --time to at least {needed}, {_ADVICE}"
        )
    logging.info(
        "steps: %d fit into %s, at %.3g s each (%s)",
        *(total, duration(limit), seconds, rules.passes(total * size, data.train.num_examples)),
    )
    if total < rules.MIN_STEPS:
        logging.warning("So few steps (%d) rarely suffice: %s. Increase --time, %s", total, costs, _ADVICE)
    return rules.of_steps(total, size, data.eval.num_examples)


def _head_only(recipe: recipes.Recipe, data: RunData, total: int, seconds: str, needed: float) -> rules.Fields:
    logging.info(
        "The fitted head is the result: only %d steps of %s s fit into %s, and fewer than %d are rarely better. "
        "To train more, pass another --workdir and a --time of more than %d minutes.",
        *(max(0, total), seconds, duration(recipe.time), rules.MIN_STEPS, math.ceil(needed / 60)),
    )
    return rules.of_steps(0, recipe.data.batch_size, data.eval.num_examples)
