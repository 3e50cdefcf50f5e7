"""What a recipe will do on a TPU slice, by the TPU's compiler: does it fit, how fast can it be, what would help."""

import dataclasses
import time
from collections.abc import Callable

import keras
from absl import logging

from keras_vit import models
from keras_vit import recipe as recipes
from keras_vit.planning import tpu_compiler, tpu_step, tpu_step_jax
from keras_vit.planning.tpu_compiler import Compiled, DoesNotFit
from keras_vit.planning.tpu_targets import Target

_MOST_PER_DEVICE = 4_096  # images; where the search for the largest batch ends


@dataclasses.dataclass(frozen=True)
class Setting:
    """What of a recipe decides how much memory a step needs.

    Attributes:
        batch_size: Images of a step, over all devices.
        remat: Whether encoder blocks are recomputed in the backward pass.
        accumulation_steps: Micro-batches of a step.
        fsdp: Whether weights and optimiser are divided among the devices (on the JAX backend).
    """

    batch_size: int
    remat: bool = False
    accumulation_steps: int = 1
    fsdp: bool = False

    def overrides(self, asked: "Setting") -> tuple[str, ...]:
        """Returns what to add to the command line to get from the setting that was asked for to this one."""
        found = []
        if self.batch_size != asked.batch_size:
            found.append(f"--config.data.batch_size={self.batch_size}")
        if self.remat != asked.remat:
            found.append(f"--config.model.remat={'blocks' if self.remat else 'none'}")
        if self.fsdp != asked.fsdp:
            found.append("--fsdp")
        if self.accumulation_steps != asked.accumulation_steps:
            found.append(f"--config.optim.accumulation_steps={self.accumulation_steps}")
        return tuple(found)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The compiler's answer for one setting, and what the hardware makes of it at best.

    Attributes:
        setting: What was compiled.
        target: For which slice.
        result: The compiler's answer.
        capacity: Bytes of memory that a program may use on a device.
        summed: Bytes of the gradients, which are summed over all devices.
    """

    setting: Setting
    target: Target
    result: Compiled | DoesNotFit
    capacity: int
    summed: int

    @property
    def fits(self) -> bool:
        """Whether the program can run."""
        return isinstance(self.result, Compiled) and self.result.memory <= self.capacity

    @property
    def free(self) -> int:
        """Bytes left over on a device; negative where it does not fit."""
        return self.capacity - self.result.memory

    @property
    def seconds(self) -> dict[str, float]:
        """The least time of a step by what is used: the operations, the memory, the network between the chips."""
        result, target = self.result, self.target
        # Each chip of a ring sends (n - 1) / n of what is collected or spread. A sum does both; divided weights are
        # collected twice, for the forward and the backward pass, and their gradients are spread.
        ring = (3 if self.setting.fsdp else 2) * (target.chips - 1) / target.chips
        return {
            "compute": result.flops / target.peak_flops,
            "memory bandwidth": result.bytes_accessed / target.bandwidth,
            "interconnect": ring * self.summed / target.generation.interconnect,
        }

    @property
    def limit(self) -> str:
        """What takes longest."""
        return max(self.seconds, key=self.seconds.get)

    @property
    def step_seconds(self) -> float:
        """The least time of a step, if all that is used is used at its peak and at the same time (the roofline)."""
        return max(self.seconds.values())

    @property
    def images_per_second(self) -> float:
        """Images of all devices together, at that time."""
        return self.setting.batch_size / self.step_seconds


class Planner:
    """Compiles settings of a recipe for a slice, each once.

    Args:
        compile_step: Function of a `Setting` to the compiler's answer.
        target: The slice.
        capacity: Bytes of memory that a program may use on a device.
        summed: Bytes of the gradients.
        rematerialises: Whether the model can recompute its blocks.
        divides: Whether weights can be divided among the devices.
    """

    def __init__(
        self,
        compile_step: Callable[[Setting], Compiled | DoesNotFit],
        target: Target,
        capacity: int,
        summed: int = 0,
        rematerialises: bool = True,
        divides: bool = False,
    ):
        self.compile_step, self.target, self.capacity, self.summed = compile_step, target, capacity, summed
        self.rematerialises, self.divides = rematerialises, divides
        self._estimates: dict[Setting, Estimate] = {}

    def estimate(self, setting: Setting) -> Estimate:
        """Returns the estimate of a setting."""
        if setting not in self._estimates:
            started = time.monotonic()
            result = self.compile_step(setting)
            estimate = Estimate(setting, self.target, result, self.capacity, self.summed)
            self._estimates[setting] = estimate
            logging.info(
                "Compiled in %.0f s: batch %s, remat %s, %d micro-batches%s: %s, %.2f GiB a device",
                time.monotonic() - started,
                f"{setting.batch_size:,}",
                "blocks" if setting.remat else "none",
                setting.accumulation_steps,
                ", fsdp" * setting.fsdp,
                "fits" if estimate.fits else "does not fit",
                result.memory / 2**30,
            )
        return self._estimates[setting]

    def largest_batch(self, setting: Setting) -> Estimate | None:
        """Searches for the largest batch that fits, up to a few per cent.

        Memory grows about linearly with the batch, so the first guesses come from a line through what was compiled;
        what is returned was compiled and fits.

        Args:
            setting: All but the batch; the search begins at its own.

        Returns:
            None if not even one image a device fits.
        """
        unit = self.target.devices * setting.accumulation_steps
        most = _MOST_PER_DEVICE // setting.accumulation_steps
        tried = {}  # images a device and micro-batch -> estimate

        def attempt(images):
            tried[images] = self.estimate(dataclasses.replace(setting, batch_size=images * unit))
            return tried[images].fits

        attempt(max(1, min(most, setting.batch_size // unit)))
        while True:
            good = [images for images, estimate in tried.items() if estimate.fits]
            bad = [images for images, estimate in tried.items() if not estimate.fits]
            low, high = max(good, default=0), min(bad, default=most + 1)
            if high - low <= max(1, low // 32):
                return tried[low] if low else None
            attempt(self._next(tried, low, high))

    def _next(self, tried: dict[int, Estimate], low: int, high: int) -> int:
        """A batch between one that fits and one that does not, by a line through the two nearest to the end."""
        known = sorted((abs(estimate.free), images, estimate.result.memory) for images, estimate in tried.items())
        (_, x1, y1), (_, x0, y0) = known[0], known[1] if len(known) > 1 else (0, 0, 0)
        if (y1 - y0) * (x1 - x0) > 0:
            guess = x1 + int((self.capacity - y1) * (x1 - x0) / (y1 - y0))
        else:  # no line: the compiler finds other ways to save memory near the end
            guess = (low + high) // 2
        margin = max(1, (high - low) // 32)
        guess = min(max(guess, low + margin), high - margin)
        rounded = guess // 8 * 8  # what the hardware likes
        return rounded if low + margin <= rounded <= high - margin else guess

    def remedies(self, setting: Setting) -> list[Estimate]:
        """Tries what makes a setting that does not fit smaller, and returns what fits, the fastest first.

        That is to recompute the blocks, micro-batches of the same batch, and to divide the weights where that can be
        done, each of these with and without the others. The batch stays, because it decides the result of the training.
        """
        found = []
        for fsdp in sorted({setting.fsdp, setting.fsdp or self.divides}):
            for remat in sorted({setting.remat, setting.remat or self.rematerialises}):
                fits = self._fewest_parts(dataclasses.replace(setting, remat=remat, fsdp=fsdp))
                found += [fits] if fits else []
        return sorted(found, key=lambda estimate: estimate.step_seconds)

    def _fewest_parts(self, setting: Setting) -> Estimate | None:
        """The setting with the fewest micro-batches that fits."""
        steps = setting.accumulation_steps
        while setting.batch_size % (self.target.devices * steps) == 0:
            estimate = self.estimate(dataclasses.replace(setting, accumulation_steps=steps))
            if estimate.fits:
                return estimate
            steps *= 2
        return None


def setting_of(recipe: recipes.Recipe, fsdp: bool = False) -> Setting:
    """Returns what a recipe sets."""
    return Setting(recipe.data.batch_size, recipe.model.remat == "blocks", recipe.optim.accumulation_steps, fsdp)


def of_recipe(recipe: recipes.Recipe, classes: int, target: Target, example: dict | None = None) -> Planner:
    """Returns the planner of a recipe's training step, as the backend that Keras runs on would train.

    Args:
        recipe: The recipe.
        classes: Number of classes of its data.
        target: The slice.
        example: See `tpu_step.batch_spec`.

    Raises:
        ValueError: If the batch cannot be divided among the devices.
        CompilerMissing: If the extra `plan` is not installed.
    """
    check_batch_size(recipe, target)
    capacity = tpu_compiler.capacity(target)
    on_jax = keras.backend.backend() == "jax"
    kind = tpu_step_jax if on_jax else tpu_step
    programs = kind.Programs(recipe, classes, tpu_step.batch_spec(recipe, example), target)

    def compile_step(setting):
        return programs.compile(with_setting(recipe, setting), setting.fsdp)

    return Planner(compile_step, target, capacity, programs.summed, recipe.model.variant in models.VIT, on_jax)


def with_setting(recipe: recipes.Recipe, setting: Setting) -> recipes.Recipe:
    """Returns the recipe with the sizes of a setting."""
    remat = "blocks" if setting.remat else recipe.model.remat and "none"
    return dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, remat=remat),
        data=dataclasses.replace(recipe.data, batch_size=setting.batch_size),
        optim=dataclasses.replace(recipe.optim, accumulation_steps=setting.accumulation_steps),
    )


def check_batch_size(recipe: recipes.Recipe, target: Target) -> None:
    """Raises a ValueError that names the nearest batch that can be divided among the devices, if this one cannot."""
    unit = target.devices * recipe.optim.accumulation_steps
    if recipe.data.batch_size % unit:
        raise ValueError(
            f"data.batch_size must divide evenly among the {target.devices} devices of {target.name}"
            f"{' and the micro-batches' if recipe.optim.accumulation_steps > 1 else ''}. Received: "
            f"data.batch_size={recipe.data.batch_size}. The nearest that works is "
            f"{recipes.nearest_multiple(recipe.data.batch_size, unit)}."
        )
