"""Memory of training, compared with the available memory before the first step.

The estimate is the counted memory of `plan.of_recipe`, and on a processor the temporary values of a step, its graph and
the copy of the weights in the file of the final model. `python -m benchmarks.step_memory` compares it with
measurements.
"""

import dataclasses
import math
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from keras_vit import models
from keras_vit import recipe as recipes
from keras_vit.planning import plan
from keras_vit.training.backend import Backend

# Peak memory of a step's activations as a multiple of those that it saves, where the step is not compiled. Measured on a
# processor: in float32 in training runs (benchmarks/step_memory.py); in 16 bits, whose sums are in float32, 1.2 in a run
# of ViT-B/16 and 1.8 in a step of ViT-Ti/16.
TEMPORARY, TEMPORARY_IN_16_BITS, TEMPORARY_OF_RESNET = 1.15, 1.5, 1.75
GRAPH = 0.2e9  # bytes of the traced step and its threads


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes that training takes on each device, and in the program beside it.

    Attributes:
        weights: Weights, gradients, optimizer state and averages. A smaller batch does not change them.
        activations: Saved activations and temporary values of the images that are in memory at a time.
        host: The graph of the step, and the weights in the file of the final model.
    """

    weights: float
    activations: float
    host: float

    @property
    def total(self) -> float:
        """Bytes in a process whose device is the processor."""
        return self.weights + self.activations + self.host


def of_recipe(recipe: recipes.Recipe, classes: int, channels: int = 3, devices: int = 1) -> Need:
    """Return the memory that each of `devices` needs, without building anything."""
    planned = plan.of_recipe(recipe, classes, devices=devices, channels=channels)
    temporary = TEMPORARY if recipe.precision == "float32" else TEMPORARY_IN_16_BITS
    if recipe.model.variant in models.BIT:
        temporary = TEMPORARY_OF_RESNET
    return Need(planned.weights_bytes, temporary * planned.activations_bytes, GRAPH + 4 * planned.cost.parameters)


def check(recipe: recipes.Recipe, backend: Backend, classes: int, channels: int) -> None:
    """Warn if the training of a recipe probably needs more memory than there is, and name the changes that make it fit.

    It is a warning because the estimate is some percent off, and other programs may end. A recipe is refused only if
    weights, gradients and optimizer state exceed the whole memory: no batch is small enough. TPUs are not checked:
    `tools.compile_plan` compiles for them.

    Raises:
        ValueError: If the recipe cannot fit.
    """
    if backend.device == "tpu":
        return
    on_gpu = backend.device == "gpu"
    total, free = (gpu_memory(),) * 2 if on_gpu else machine_memory()  # TensorFlow or JAX have taken over all of a GPU

    def need_of(changed: recipes.Recipe) -> tuple[float, float]:
        """Return the bytes of the weights and of everything. All devices of this process may be one processor."""
        need = of_recipe(changed, classes, channels, backend.num_replicas)
        weights = need.weights / backend.weight_parts
        if on_gpu:
            return weights, weights + need.activations
        local = backend.num_replicas // backend.num_workers
        return local * weights, local * (weights + need.activations) + need.host

    weights, needed = need_of(recipe)
    if weights > total:
        raise ValueError(
            f"Weights, gradients and optimizer state of {recipe.model.variant} take {_gb(weights)}, more than the "
            f"{_gb(total)} of memory here. Take a smaller model.variant, or a machine or device with more memory."
        )
    if needed > free:
        advice = _advice(recipe, lambda changed: need_of(changed)[1], free, backend.num_replicas)
        logging.warning(
            "Training takes about %s of memory, and %s %s: this program may be ended. %s",
            *(_gb(needed), _gb(free), "a device has" if on_gpu else "are free", advice),
        )


def _advice(recipe: recipes.Recipe, bytes_of: Callable, free: float, devices: int) -> str:
    """Return the smallest change of a recipe that fits and keeps its result, in words."""
    parts, batch_size = recipe.optim.accumulation_steps, recipe.data.batch_size
    possible = [n for n in range(parts + 1, batch_size // devices + 1) if batch_size % (devices * n) == 0]
    remat = {"model.remat": "blocks"} if recipe.model.variant in models.VIT else {}
    changes: list[dict[str, Any]] = [{"optim.accumulation_steps": n} for n in possible]
    changes += [{**remat, "optim.accumulation_steps": n} for n in (parts, *possible)]
    for change in changes:
        if (needed := bytes_of(recipes.replace(recipe, change))) <= free:
            fields = " ".join(f"--config.{field}={value}" for field, value in change.items())
            return f"What fits, with the same result: {fields} ({_gb(needed)})."
    return "Not even one image at a time fits: take a smaller model.image_size or model.variant."


def _gb(count: float) -> str:
    return f"{count / 1e9:.1f} GB"


def machine_memory() -> tuple[float, float]:
    """Return the bytes of memory of this machine or its container, and those of them that are free."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    free = min(total, 1024 * _entries("/proc/meminfo").get("MemAvailable", total))
    for folder in _control_groups():
        limit, used = (_number(os.path.join(folder, name)) for name in ("memory.max", "memory.current"))
        if limit is not None and limit < total:
            freed = _entries(os.path.join(folder, "memory.stat")).get("inactive_file", 0)
            total, free = limit, min(free, limit - (used or 0) + freed)
    return total, free


def gpu_memory() -> float:
    """Return the bytes of memory of the GPU with the least, by NVIDIA's driver; infinite if it does not say."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return min(map(float, text.split())) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return math.inf


def _control_groups() -> Iterator[str]:
    """Yield the folders of the control groups of this process, from the outermost; version 2 of Linux' only."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            paths = [line.strip().removeprefix("0::/") for line in file if line.startswith("0::")]
    except OSError:  # not Linux
        return
    for path in paths:
        parts = path.split("/")
        yield from (os.path.join("/sys/fs/cgroup", *parts[:depth]) for depth in range(len(parts) + 1))


def _number(path: str) -> float | None:
    """Return the number in a file; None if there is no such file or it contains no number."""
    try:
        with open(path, encoding="utf-8") as file:
            return float(file.read())
    except (OSError, ValueError):
        return None


def _entries(path: str) -> dict[str, float]:
    """Return the numbers of a file of lines such as `MemAvailable:   123 kB` by name; none if there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            fields = [line.replace(":", "").split() for line in file]
    except OSError:
        return {}
    return {name: float(value) for name, value, *_ in fields}
