"""Speed and memory of training, inference and attention, with data on the device."""

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np

from benchmarks.gpu import steps
from keras_vit import recipe as recipes
from keras_vit.layers import formulas
from keras_vit.layers.kernels import fused_attention
from keras_vit.training.planning import cost

BATCHES = (128, 256, 512)  # each batch size is compiled
SMALL_BATCHES = (64, 32)  # for GPUs with little memory
ENOUGH = 60.0  # seconds after which no larger batch is tried
SECONDS = 2.0  # per measurement
# Dense bfloat16 operations per second of a device, from NVIDIA's data sheets.
PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "4090": 165e12,
}


def peak() -> float | None:
    """Return the peak operations per second of the device, or None if unknown."""
    name = steps.device_name()
    return next((value for key, value in PEAKS.items() if key in name), None)


def training(
    variant: str, optimizer: str, remat: str = "none", tiny: bool = False, task: str = "classification"
) -> dict[str, Any]:
    """Measure training steps with growing batches; see `best_batch`.

    Args:
        variant: Name of the model, or of the encoder of a masked autoencoder.
        optimizer: `"sgd"` or `"adamw"`.
        remat: See `ViTConfig`.
        tiny: Whether to use a tiny model instead of the variant.
        task: `"classification"` or `"mae"`.

    Returns:
        Batch size, images per second, model FLOP utilization and peak memory in bytes.
    """

    def of_batch(batch_size: int) -> dict[str, Any]:
        return _training(*steps.setup(variant, optimizer, tiny, batch_size, remat, task=task), tiny)

    return best_batch(of_batch, tiny)


def best_batch(of_batch: Callable[[int], dict[str, Any]], tiny: bool) -> dict[str, Any]:
    """Return the results of the fastest batch size.

    The sizes grow until a batch does not fit or is hardly faster, or until a minute has passed. Each new best result is
    printed at once, so that the row keeps it if its time ends.
    """
    best, start = dict[str, Any](), time.perf_counter()
    for batch_size in (2,) if tiny else BATCHES:
        if best and time.perf_counter() - start > ENOUGH:
            break
        found = _fitting(of_batch, batch_size)
        if not found or (best and found["images_per_second"] < 1.03 * best["images_per_second"]):
            break
        best = found
        sys.stdout.write(json.dumps(best) + "\n")
        sys.stdout.flush()
    for batch_size in SMALL_BATCHES:
        best = best or _fitting(of_batch, batch_size)
    if not best:
        raise MemoryError(f"The model does not fit with {SMALL_BATCHES[-1]} images.")
    return best


def _fitting(of_batch: Callable[[int], dict[str, Any]], batch_size: int) -> dict[str, Any]:
    """Return the results of a batch size, or an empty dictionary if the memory is too small."""
    try:
        return of_batch(batch_size)
    except Exception as error:  # noqa: BLE001  XLA's error has no separate class, and PyTorch may be missing
        if "RESOURCE_EXHAUSTED" not in str(error) and type(error).__name__ != "OutOfMemoryError":
            raise
    return {}


def _training(model: keras.Model, recipe: recipes.Recipe, batch_size: int, tiny: bool) -> dict[str, Any]:
    run = steps.Steps(model, recipe, batch_size)
    batch = run.place(*steps.random_batch(model, batch_size))
    seconds, metrics = measure(lambda: run.run(batch), 0.2 if tiny else SECONDS)
    if not np.isfinite(list(metrics.values())).all():
        raise ValueError(f"The metrics are not finite: {metrics}")
    return {"batch_size": batch_size, **rates(batch_size / seconds, cost.of_config(model.config)), **memory()}


def rates(images_per_second: float, costs: cost.Cost) -> dict[str, Any]:
    """Return images per second and the corresponding utilization of the device."""
    limit = peak()
    used = None if limit is None else round(images_per_second * costs.training_flops / limit, 4)
    return {"images_per_second": round(images_per_second, 1), "utilization": used}


def memory() -> dict[str, Any]:
    """Return the peak memory of the device in bytes, or None if JAX does not report it."""
    statistics_of_device = jax.devices()[0].memory_stats() or {}
    return {"peak_bytes": statistics_of_device.get("peak_bytes_in_use")}


def measure(function: Callable[[], Any], seconds: float) -> tuple[float, Any]:
    """Return the median time of a call over five rounds, after warm-up calls, and the last result."""
    for _ in range(2):
        result = jax.block_until_ready(function())  # compiles
    start = time.perf_counter()
    result = jax.block_until_ready(function())
    calls = max(1, int(seconds / 5 / max(time.perf_counter() - start, 1e-6)))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls):
            result = function()
        jax.block_until_ready(result)
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times), result


def inference(variant: str, batches: list[int], tiny: bool = False) -> dict[str, Any]:
    """Measure inference in bfloat16.

    Returns:
        Milliseconds per batch, by batch size.
    """
    model, _, _ = steps.setup(variant, "sgd", tiny)
    forward, found = steps.Forward(model), {}
    for batch_size in batches:
        images = jax.device_put(steps.random_batch(model, batch_size)[0].astype("bfloat16"))
        seconds, _ = measure(functools.partial(forward, images), 0.1 if tiny else SECONDS / 2)
        found[str(batch_size)] = round(1e3 * seconds, 3)
    return {"ms_per_batch": found, **memory()}


def attention(tokens: list[int], tiny: bool = False) -> dict[str, Any]:
    """Measure attention with its gradients, by implementation, in bfloat16 with heads as in ViT-B/16.

    Returns:
        Milliseconds by number of tokens and implementation; None if the device does not support the implementation.
    """
    implementations: dict[str, Callable] = {"plain": lambda *inputs: formulas.attention(*inputs)[0]}
    if fused_attention.has_cudnn():
        implementations["cuDNN"] = fused_attention.attend
    batch_size, heads, size = (1, 2, 8) if tiny else (64, 12, 64)
    found: dict[str, dict[str, float | str]] = {}
    for length in tokens:
        keys = jax.random.split(jax.random.key(0), 3)
        arrays = [jax.random.normal(key, (batch_size, length, heads, size), "bfloat16") for key in keys]
        for name, function in implementations.items():
            total = lambda *inputs, function=function: function(*inputs).astype("float32").sum()  # noqa: E731
            gradients = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
            try:
                seconds, _ = measure(functools.partial(gradients, *arrays), 0.05 if tiny else 0.5)
                found.setdefault(str(length), {})[name] = round(1e3 * seconds, 3)
            except Exception as error:  # noqa: BLE001  the other implementations continue
                found.setdefault(str(length), {})[name] = str(error).splitlines()[0][:200]
    return {"ms_with_gradients": found}
