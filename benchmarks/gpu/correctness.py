"""Checks on JAX's device: golden logits and trajectories, determinism, and the resume of a killed run."""

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.gpu import steps
from keras_vit import checkpoints
from keras_vit.util import file_io
from tests.training import reference

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
MODELS = ["vit_token_linen", "vit_gap", "hybrid_blocks", "bv_map", "bit_big_vision"]
SINGLE = 1e-4  # float32: sums in another order
HALF = 5e-2  # bfloat16: a few dozen consecutive operations, each rounded to 8 bits
STEPS, KILLED_AFTER = 6, 3


def correctness(trajectories: list[str], models: list[str] = MODELS) -> dict[str, Any]:
    """Compare logits and trajectories with the results of the reference implementations.

    Returns:
        The device, and the largest relative error of each comparison; `wrong` lists the errors above their limits.

    Raises:
        ValueError: If an error is above its limit.
    """
    jax.config.update("jax_default_matmul_precision", "highest")  # no TF32
    found = {f"{name} {policy}": _logits(name, policy) for name in models for policy in ("float32", "mixed_bfloat16")}
    found |= {name: _trajectory(name) for name in trajectories}
    wrong = {name: value for name, value in found.items() if not value < (HALF if "mixed" in name else SINGLE)}
    if wrong:
        raise ValueError(f"Errors above their limits: {wrong}")
    return {"device": steps.device_name(), "jax": jax.__version__, "errors": found}


def error(value: Any, expected: Any) -> float:
    """Return the maximum difference relative to the maximum expected value."""
    value, expected = np.asarray(value, np.float64), np.asarray(expected, np.float64)
    return float(np.abs(value - expected).max() / max(np.abs(expected).max(), 1e-12))


def _logits(name: str, policy: str) -> float:
    """Return the error of the logits of a golden file."""
    data = np.load(GOLDEN / f"{name}.npz")
    model = checkpoints.model_from_checkpoint(GOLDEN / f"{name}.npz", dtype=policy)
    forward = steps.Forward(model)
    return error(np.asarray(forward(data["image"]), np.float32), data["logits"])


def _trajectory(name: str) -> float:
    """Return the maximum error of the losses and final weights of a golden training run."""
    data, start, end, _ = reference.load(name)
    model = reference.create_model(data["meta"])
    reference.assign(model, start)
    run = steps.Steps(model, reference.recipe(data["meta"]), batch_size=len(data["labels"][0]))
    losses = [run(images, labels)["loss"] for images, labels in zip(data["images"], data["labels"], strict=True)]
    run.finish()
    errors = [error(losses, data["losses"])]
    for weight in run.state.trained:
        if not (name == "traj_adamw" and weight.path.endswith("key/bias")):  # its gradient is only rounding noise
            errors.append(error(np.asarray(weight.value), end[weight.path]))
    return max(errors)


def resume(path: str, kill: bool, tiny: bool) -> dict[str, Any]:
    """Check that two runs and a resumed run have the same final weights, or save the state and kill this process.

    Args:
        path: File of the state after `KILLED_AFTER` steps, which the killed process writes and the next process reads.
        kill: Whether this process saves the state and is killed.
        tiny: Whether the model is tiny.

    Returns:
        The digest of the final weights. A killed process does not return.

    Raises:
        ValueError: If the final weights of two runs, or of the resumed run, differ in any bit.
    """
    model, recipe, batch_size = steps.setup("ViT-Ti/16" if tiny else "ViT-S/16", "adamw", tiny=tiny, dropout=0.1)
    run = steps.Steps(model, recipe, batch_size)
    start = dict(run.state.values())
    if kill:
        _train(run, start, 0, KILLED_AFTER)
        with file_io.atomic_file(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, allow_pickle=False, **dict(run.state.values()))
        os.kill(os.getpid(), signal.SIGKILL)
    with np.load(path) as file:
        saved = dict(file)
    os.remove(path)
    resumed = _train(run, saved, KILLED_AFTER, STEPS)
    first, second = (_train(run, start, 0, STEPS) for _ in range(2))
    if first != second:
        raise ValueError("Two runs with the same seed end with different bits.")
    if resumed != first:
        raise ValueError("The resumed run ends with other bits than the uninterrupted run.")
    return {"weights": first}


def _train(run: steps.Steps, values: dict[str, np.ndarray], first: int, last: int) -> str:
    """Train from the arrays of a checkpoint, and return the digest of the final arrays."""
    run.resume(values, first)
    for step in range(first, last):
        run(*steps.random_batch(run.state.model, run.step.global_batch_size, seed=step))
    run.finish()
    digest = hashlib.sha256()
    for name, value in sorted(run.state.values()):
        digest.update(name.encode() + np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
