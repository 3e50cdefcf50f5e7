"""Comparison of the memory that training needs with the available memory, before the first step.

`plan.of_recipe` estimates the memory. `python -m benchmarks.step_memory` compares the estimate with measurements.
"""

import math
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from keras_vit import models
from keras_vit import recipe as recipes
from keras_vit.training.backend import Backend
from keras_vit.training.planning import plan


def check(recipe: recipes.Recipe, backend: Backend, classes: int, channels: int) -> None:
    """Warn if training a recipe probably needs more memory than is free, and suggest changes that make it fit.

    This is only a warning because the estimate is off by some percent, and other programs may free memory. If the
    weights, gradients and optimizer state exceed the total memory, no batch size fits, and the function raises an
    error. TPUs are not checked; `tools.compile_plan` compiles programs for them.

    Raises:
        ValueError: If the weights, gradients and optimizer state exceed the total memory.
    """
    if backend.device == "tpu":
        return
    on_gpu = backend.device == "gpu"
    total, free = (gpu_memory(),) * 2 if on_gpu else machine_memory()  # TensorFlow or JAX has reserved the whole GPU
    sharing = 1 if on_gpu else backend.num_replicas // backend.num_workers  # devices that share a memory

    def planned(changed: recipes.Recipe) -> plan.Plan:
        return plan.of_recipe(changed, classes, devices=backend.num_replicas, channels=channels)

    def bytes_of(given: plan.Plan) -> float:
        return given.total_bytes(on_gpu, sharing, backend.weight_parts)

    own = planned(recipe)
    weights, needed = sharing * own.weights_bytes / backend.weight_parts, bytes_of(own)
    if weights > total:
        raise ValueError(
            f"Weights, gradients and optimizer state of {recipe.model.variant} take {_gb(weights)}, more than the "
            f"{_gb(total)} of available memory. Use a smaller model.variant, or a machine or device with more memory."
        )
    if needed > free:
        advice = _advice(recipe, lambda changed: bytes_of(planned(changed)), free, backend.num_replicas)
        available = f"a device has {_gb(free)}" if on_gpu else f"{_gb(free)} are free"
        text = "Training takes about %s of memory, but %s. The system may kill this program. %s"
        logging.warning(text, _gb(needed), available, advice)


def _advice(recipe: recipes.Recipe, bytes_of: Callable, free: float, devices: int) -> str:
    """Return a text with the smallest change of a recipe that fits into the memory and does not affect the result."""
    parts, batch_size = recipe.optim.accumulation_steps, recipe.data.batch_size
    possible = [n for n in range(parts + 1, batch_size // devices + 1) if batch_size % (devices * n) == 0]
    remat = {"model.remat": "blocks"} if recipe.model.variant in models.VIT else {}
    changes: list[dict[str, Any]] = [{"optim.accumulation_steps": n} for n in possible]
    changes += [{**remat, "optim.accumulation_steps": n} for n in (parts, *possible)]
    for change in changes:
        if (needed := bytes_of(recipes.replace(recipe, change))) <= free:
            fields = " ".join(f"--config.{field}={value}" for field, value in change.items())
            return f"These settings fit, with the same result: {fields} ({_gb(needed)})."
    return "Not even one image at a time fits: take a smaller model.image_size or model.variant."


def _gb(count: float) -> str:
    return f"{count / 1e9:.1f} GB"


def machine_memory() -> tuple[float, float]:
    """Return the total and the free bytes of memory of this machine or its container."""
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    free = min(total, 1024 * _entries("/proc/meminfo").get("MemAvailable", total))
    for folder in _control_groups():
        limit, used = (_text(os.path.join(folder, name)).strip() for name in ("memory.max", "memory.current"))
        if limit.isdigit() and float(limit) < total:  # the limit may be "max"
            freed = _entries(os.path.join(folder, "memory.stat")).get("inactive_file", 0)
            total, free = float(limit), min(free, float(limit) - float(used or 0) + freed)
    return total, free


def gpu_memory() -> float:
    """Return the bytes of memory of the smallest GPU according to NVIDIA's driver, or infinity if it is unknown."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return min(map(float, text.split())) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return math.inf


def _control_groups() -> Iterator[str]:
    """Yield the folders of this process's control groups, outermost first. Supports only version 2 of cgroups."""
    for line in _text("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            parts = line.removeprefix("0::/").split("/")
            yield from (os.path.join("/sys/fs/cgroup", *parts[:depth]) for depth in range(len(parts) + 1))


def _entries(path: str) -> dict[str, float]:
    """Parse lines such as `MemAvailable:   123 kB` into a dictionary of numbers; empty if the file does not exist."""
    fields = (line.replace(":", "").split() for line in _text(path).splitlines())
    return {name: float(value) for name, value, *_ in fields}


def _text(path: str) -> str:
    """Return the content of a file, or an empty string if it does not exist, as on systems other than Linux."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
