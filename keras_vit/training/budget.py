"""Number of steps that fit into the time limit of a recipe, estimated from a few measured steps."""

import math
import time

from absl import logging

from keras_vit import recipe as recipes
from keras_vit.training.backend import Backend
from keras_vit.training.planning import rules
from keras_vit.training.run_data import Splits
from keras_vit.util.progress import Progress, duration

_MEASURED_SECONDS = 3.0  # minimum duration of the measured steps
_FEWEST = 10  # steps, fewer of which leave the head almost random
# Share of the time for the steps, after the fixed costs. The evaluations process at most 0.4 times as many images, at
# twice the speed. The final model and the report also take time.
_SHARE = 0.8


def fields(recipe: recipes.Recipe, backend: Backend, data: Splits, started: float) -> rules.Fields:
    """Measure a few steps on these devices, and return the fields of a recipe that depend on its time limit.

    The measured model is discarded. `started` is the value of `time.monotonic()` at the start of the program.

    Raises:
        ValueError: If fewer than 10 steps fit. The model is not compiled again.
    """
    logging.info("Measuring a few steps, to plan for %s.", duration(recipe.time))
    before = time.monotonic()
    state = backend.create_state(recipe, data.task, data.channels)
    state.begin()
    run_steps, batches = backend.compile_steps(state, recipe), iter(data.train_batches(0))
    with Progress("Compiling and running the first step"):
        run_steps(batches, 0, 1)
    compiled, count = time.monotonic(), 0
    with Progress("Measuring", unit="steps") as progress:
        # All processes run the same number of steps.
        while not count or backend.mean(time.monotonic() - compiled) < _MEASURED_SECONDS:
            count += 1
            run_steps(batches, count, 1)
            progress.add(1)
    size, seconds = recipe.data.batch_size, backend.mean(time.monotonic() - compiled) / count
    # The model is built and compiled again. An evaluation takes about as long to compile, and runs at least once.
    evaluation = seconds / 2 * sum(split.num_examples for split in (data.eval, data.test) if split) / size
    fixed = backend.mean(time.monotonic() - started + 2 * (compiled - before)) + evaluation
    total = int(_SHARE * (recipe.time - fixed) / seconds)
    costs = f"the start, the compilation and one evaluation take about {duration(fixed)}"
    advice = "reduce --image_size, or train only the head with --adapt=head."
    if total < _FEWEST:
        needed = duration(math.ceil(fixed + _FEWEST * seconds / _SHARE))
        raise ValueError(
            f"The time must suffice for at least {_FEWEST} steps. Received: {duration(recipe.time)}, for "
            f"{max(0, total)} steps of {seconds:.3g} s: {costs}. Increase --time to at least {needed}, {advice}"
        )
    logging.info(
        "steps: %d fit into %s, at %.3g s each (%s)",
        *(total, duration(recipe.time), seconds, rules.passes(total * size, data.train.num_examples)),
    )
    if total < rules.MIN_STEPS:
        logging.warning("So few steps (%d) rarely suffice: %s. Increase --time, %s", total, costs, advice)
    return rules.of_steps(total, size, data.eval.num_examples)
