"""Plan of a recipe's training step on a target: memory, a lower bound of the time, and changes that make it fit."""

import dataclasses
import time
from collections.abc import Callable

import keras
from absl import logging

from keras_vit import models
from keras_vit import recipe as recipes
from keras_vit.training import distribute
from keras_vit.training.planning import plan
from tools.compile_plan import step_program
from tools.compile_plan.compiler import Compiled, Compiler, DoesNotFit
from tools.compile_plan.targets import Target, Tpu

_MAX_IMAGES_PER_DEVICE = 4_096  # limit of the search for the largest batch


@dataclasses.dataclass(frozen=True)
class Setting:
    """Fields of a recipe that determine the memory of a step. `batch_size` is the global batch size."""

    batch_size: int
    remat: bool = False
    accumulation_steps: int = 1
    fsdp: int = 1  # devices that share a copy of the weights and the optimizer, on the JAX backend

    def overrides(self, requested: "Setting") -> tuple[str, ...]:
        """Return the flags that change the requested setting to this one."""
        flags = {
            "batch_size": f"--config.data.batch_size={self.batch_size}",
            "remat": f"--config.model.remat={'blocks' if self.remat else 'none'}",
            "fsdp": f"--distribute='mesh(fsdp={self.fsdp})'",
            "accumulation_steps": f"--config.optim.accumulation_steps={self.accumulation_steps}",
        }
        return tuple(flag for field, flag in flags.items() if getattr(self, field) != getattr(requested, field))


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Result of the compiler for a setting, and bounds from the figures of the hardware."""

    setting: Setting
    target: Target
    result: Compiled | DoesNotFit
    capacity: int  # bytes of memory per device that a program may use

    @property
    def fits(self) -> bool:
        """Whether the program can run."""
        return isinstance(self.result, Compiled) and self.result.memory <= self.capacity

    @property
    def free(self) -> int:
        """Free bytes per device; negative if the program does not fit."""
        return self.capacity - self.result.memory

    @property
    def seconds(self) -> dict[str, float]:
        """Lower bounds of the time of a step by resource: operations, memory traffic, and bytes sent to other chips.

        On a GPU, the cache may hold any value within a step. Only arguments and results are certain to be moved.
        """
        result, target = self.result, self.target
        assert isinstance(result, Compiled), "a program that does not fit has no time"
        moved = result.bytes_accessed if isinstance(target.chip, Tpu) else result.arguments + result.outputs
        bounds = {
            "compute": result.flops / target.peak_flops,
            "memory bandwidth": moved / target.bandwidth,
            "interconnect": result.sent / target.chip.interconnect,
        }
        if target.network:
            bounds["network"] = result.sent_across / target.network
        return bounds

    @property
    def limit(self) -> str:
        """Resource that takes the longest time."""
        seconds = self.seconds
        return max(seconds, key=lambda name: seconds[name])

    @property
    def step_seconds(self) -> float:
        """Lower bound of the time of a step, if all resources work at their peak simultaneously (roofline model)."""
        return max(self.seconds.values())

    @property
    def images_per_second(self) -> float:
        """Upper bound of the throughput, over all devices."""
        return self.setting.batch_size / self.step_seconds


@dataclasses.dataclass
class Planner:
    """Planner that compiles each setting of a recipe once for a target. Memory is in bytes per device."""

    compile_step: Callable[[Setting], Compiled | DoesNotFit]
    target: Target
    capacity: int
    rematerializes: bool = True
    most_fsdp: int = 1  # devices of a slice that can share the weights
    weights_bytes: int = 0  # of the weights, the gradients and the optimizer
    _estimates: dict[Setting, Estimate] = dataclasses.field(default_factory=dict)

    def estimate(self, setting: Setting) -> Estimate:
        """Return the estimate of a setting."""
        if setting not in self._estimates:
            started = time.monotonic()
            result = self.compile_step(setting)
            estimate = Estimate(setting, self.target, result, self.capacity)
            self._estimates[setting] = estimate
            logging.info(
                "Compiled in %.0f s: batch size %s, remat %s, %d micro-batches%s: %s, %.2f GiB per device",
                time.monotonic() - started,
                f"{setting.batch_size:,}",
                "blocks" if setting.remat else "none",
                setting.accumulation_steps,
                f", fsdp={setting.fsdp}" if setting.fsdp > 1 else "",
                "fits" if estimate.fits else "does not fit",
                result.memory / 2**30,
            )
        return self._estimates[setting]

    def largest_batch(self, setting: Setting) -> Estimate | None:
        """Search for the largest batch size that fits, to within a few percent.

        Memory is roughly linear in the batch size, so the search interpolates between compiled settings. It starts at
        the batch size of the setting, and returns None if not even one image per device fits.
        """
        unit = self.target.devices * setting.accumulation_steps
        most = _MAX_IMAGES_PER_DEVICE // setting.accumulation_steps
        tried: dict[int, Estimate] = {}  # by images per device and micro-batch

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
        """Interpolate the next size between `low`, which fits, and `high`, which does not fit."""
        known = sorted((abs(estimate.free), images, estimate.result.memory) for images, estimate in tried.items())
        (_, x1, y1), (_, x0, y0) = known[0], known[1] if len(known) > 1 else (0, 0, 0)
        if (y1 - y0) * (x1 - x0) > 0:
            guess = x1 + int((self.capacity - y1) * (x1 - x0) / (y1 - y0))
        else:  # not linear: close to the limit, the compiler saves memory in other ways
            guess = (low + high) // 2
        margin = max(1, (high - low) // 32)
        guess = min(max(guess, low + margin), high - margin)
        rounded = guess // 8 * 8  # multiples of 8 suit the hardware
        return rounded if low + margin <= rounded <= high - margin else guess

    def remedies(self, setting: Setting) -> list[Estimate]:
        """Return settings that fit in place of a setting that does not fit, sorted by speed.

        The settings combine rematerialization of blocks, gradient accumulation over micro-batches and, if possible,
        sharded weights. The batch size does not change, because the result of training depends on it.
        """
        found = []
        for remat in sorted({setting.remat, setting.remat or self.rematerializes}):
            whole = dataclasses.replace(setting, remat=remat)
            for fsdp in sorted({setting.fsdp, self._fewest_devices(self.estimate(whole))}):
                fits = self._fewest_parts(dataclasses.replace(whole, fsdp=fsdp))
                found += [fits] if fits else []
        return sorted(found, key=lambda estimate: estimate.step_seconds)

    def _fewest_devices(self, estimate: Estimate) -> int:
        """Return the smallest number of devices that can share the weights so that the rest of the step fits."""
        weights = self.weights_bytes / estimate.setting.fsdp
        free = self.capacity - (estimate.result.memory - weights)
        sizes = [size for size in range(1, self.most_fsdp + 1) if self.most_fsdp % size == 0]
        return next((size for size in sizes if 0 < self.weights_bytes / size < free), self.most_fsdp)

    def _fewest_parts(self, setting: Setting) -> Estimate | None:
        """Return the fitting estimate with the fewest micro-batches, or None."""
        steps = setting.accumulation_steps
        while setting.batch_size % (self.target.devices * steps) == 0:
            estimate = self.estimate(dataclasses.replace(setting, accumulation_steps=steps))
            if estimate.fits:
                return estimate
            steps *= 2
        return None


def setting_of(recipe: recipes.Recipe, fsdp: int = 1) -> Setting:
    """Return the setting of a recipe."""
    return Setting(recipe.data.batch_size, recipe.model.remat == "blocks", recipe.optim.accumulation_steps, fsdp)


def of_recipe(recipe: recipes.Recipe, classes: int, compiler: Compiler, example: dict | None = None) -> Planner:
    """Return the planner of a recipe's training step on the current Keras backend.

    `example` specifies a batch; see `step_program.batch_spec`.
    """
    data, optim, target = recipe.data, recipe.optim, compiler.target
    distribute.check_batch_size("data.batch_size", data.batch_size, target.devices, optim.accumulation_steps)
    capacity = compiler.capacity()
    on_jax = keras.backend.backend() == "jax"
    if target.slices > 1 and not on_jax:
        raise ValueError(f"--slices={target.slices} needs the JAX backend. Set KERAS_BACKEND=jax.")
    kind = step_program.JaxPrograms if on_jax else step_program.Programs
    programs = kind(recipe, classes, step_program.batch_spec(recipe, example), compiler)

    def compile_step(setting):
        return programs.compile(with_setting(recipe, setting), setting.fsdp)

    most_fsdp = target.devices // target.slices if on_jax else 1
    weights_bytes = plan.of_recipe(recipe, classes, devices=target.devices).weights_bytes
    return Planner(compile_step, target, capacity, recipe.model.variant in models.VIT, most_fsdp, weights_bytes)


def with_setting(recipe: recipes.Recipe, setting: Setting) -> recipes.Recipe:
    """Return the recipe with the fields of a setting."""
    remat = "blocks" if setting.remat else recipe.model.remat and "none"
    return dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, remat=remat),
        data=dataclasses.replace(recipe.data, batch_size=setting.batch_size),
        optim=dataclasses.replace(recipe.optim, accumulation_steps=setting.accumulation_steps),
    )
