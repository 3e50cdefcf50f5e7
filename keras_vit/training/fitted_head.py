"""Head of a run that is fitted to features of the training images before the first step.

The features are computed once and kept in the run directory. With few images, mirror images are added if the training
mirrors images and this reduces the loss on held-out images.
"""

import hashlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_vit import optim
from keras_vit import recipe as recipes
from keras_vit.data import errors, preprocess, train_batches
from keras_vit.data.parse import parse
from keras_vit.evaluators.linear_fit import LOSSES, STRENGTHS, LinearFit, on_grid, stratified_folds
from keras_vit.inference.feature_store import Arrays, FeatureStore
from keras_vit.layers.interpolation import interpolation_matrix
from keras_vit.models.dense_heads import LinearSegmenter
from keras_vit.models.representation import representation
from keras_vit.models.variables import weights
from keras_vit.tasks import Task
from keras_vit.training.backend import Backend
from keras_vit.training.planning import memory, rules
from keras_vit.training.run_data import SKIP_ADVICE, RunData
from keras_vit.training.state import BaseState
from keras_vit.util.progress import Progress, duration

FOLDER = "features"  # in the run directory
_BATCHES_PER_PART = 32
_FINER = 4  # samples of a mask per patch and axis
_SHARE_OF_MEMORY, _COPIES = 0.4, 3  # of the features, in float64
_BEFORE_HEAD = ("head_norm", "representation_size", "distillation_token")  # arguments that add weights


def reason_against(recipe: recipes.Recipe, backend: Backend, task: Task) -> str | None:
    """Return why the head of a recipe, with the architecture of its weights, cannot be fitted. None if it can."""
    if not task.linear_loss:
        return f"task={str(task)!r} has no linear head that learns from labels"
    if backend.num_workers > 1:
        return "several processes share the training images"
    between = [name for name in _BEFORE_HEAD if recipe.model.arguments.get(name)]
    return f"the head has other weights because of {', '.join(between)}" if between else None


def without(recipe: recipes.Recipe, data: RunData) -> rules.Fields:
    """Return the fields of a recipe whose head cannot be fitted: steps train it."""
    fields: rules.Fields = {"head_images": 0}
    if not recipe.total_steps:
        counts = (data.train.num_examples, data.eval.num_examples, data.train.num_outputs)
        facts = rules.Facts(*counts, data.train.kind, gpus=0, memory=0.0, cores=1)
        fields |= rules.steps(facts, recipes.replace(recipe, fields | {"total_steps": 1}))[0]
    return fields


def fit(state: BaseState, backend: Backend, data: RunData, directory: str, images: Mapping[str, Any]) -> float | None:
    """Fit the head of a model with its initial weights, and assign it to the model.

    Returns the seconds per image in the forward pass; None if the features were not computed now. `images` is the
    fingerprint of the training images.
    """
    started = time.monotonic()
    features, targets, seconds = _examples(state, backend, data, directory, images)
    head = _head(state.model)
    loss, class_weights = LOSSES[data.task.linear_loss], getattr(data.task, "class_weights", None)
    folds = stratified_folds(len(targets), targets.argmax(axis=-1) if data.train.kind.is_exclusive else None)
    if class_weights is not None:
        targets = targets * np.asarray(class_weights)
    if features.ndim > 3:  # patches [V, N, h, w, D], targets [N, Y, X, C]
        sizes = zip(targets.shape[1:3], features.shape[2:4], strict=True)
        loss = on_grid(loss, *(interpolation_matrix(new, old, "bilinear", np) for new, old in sizes))
    with Progress("Fitting the head"):
        problems = [LinearFit(features[:views], targets, loss) for views in {1, len(features)}]
        problem, l2, held_out = _chosen(problems, folds)
        kernel, bias = problem.kernel_and_bias(problem.solve(l2))
    _assign(head, kernel, bias, problem)
    state.begin()
    found = f", held-out loss {held_out:.4f}" if held_out is not None else ""
    views = " and their mirror images" if len(problem.x) > 1 else ""
    logging.info(
        "The head is fitted to the features of %d images%s, in %s (regularization %.3g%s)",
        *(len(targets), views, duration(time.monotonic() - started), l2, found),
    )
    return seconds


def _chosen(problems: Sequence[LinearFit], folds: np.ndarray) -> tuple[LinearFit, float, float | None]:
    """Return the problem with the smallest loss on held-out examples, its regularization and this loss.

    Each problem has more views than the problem before it, and needs less regularization.
    """
    found: list[tuple[LinearFit, float, float | None]] = []
    for problem in problems:
        strengths = [strength for strength in STRENGTHS if not found or strength < 4 * found[-1][1]]
        found.append((problem, *problem.choose(folds, strengths)))
    return min(found, key=lambda choice: math.inf if choice[2] is None else choice[2])


def _head(model: Any) -> Any:
    return getattr(model.config, "head", None) or model.get_layer("head")


def _assign(head: Any, kernel: np.ndarray, bias: np.ndarray, problem: LinearFit) -> None:
    """Set the weights of a head. The batch norm of a segmentation head gets the statistics of the features."""
    if isinstance(head, LinearSegmenter):
        norm, head = head.norm, head.classifier
        mean, variance = problem.mean[0], problem.deviation[0] ** 2
        for variable, value in zip((norm.moving_mean, norm.moving_variance), (mean, variance), strict=True):
            variable.assign(value)
        bias, kernel = bias + mean @ kernel, kernel * np.sqrt(variance + norm.epsilon)[:, None]
    head.kernel.assign(kernel)
    head.bias.assign(bias)


def _examples(
    state: BaseState, backend: Backend, data: RunData, directory: str, images: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray, float | None]:
    """Return features `[V, N, ..., D]`, targets `[N, ..., C]` and the seconds per image and view, if measured."""
    recipe, task, size, pp = data.recipe, data.task, data.eval_batch_size, data.recipe.data.pp_eval
    few = data.train.num_examples < rules.FEW_PER_CLASS * data.train.num_outputs  # mirror images help, and cost little
    mirrored = few and any(call.op.name == "flip_lr" for call in parse(recipe.data.pp_train))
    is_dense, views = isinstance(_head(state.model), LinearSegmenter), 2 if mirrored else 1
    count = _number(recipe, data, views, representation(state.model, is_dense).outputs[0].shape)
    about = {
        "task": str(task),
        "weights": _digest(state.model),
        "preprocess": pp,
        "rows": (count, size, recipe.seed, recipe.data.on_bad_image, recipe.data.shuffle_buffer, mirrored),
        "precision": recipe.precision,
    }
    store = FeatureStore(os.path.join(directory, FOLDER) if backend.is_chief else None, about)
    forward, to_model_range = backend.compile_forward(state, is_dense), preprocess.device_function(pp)
    num_batches, seconds, batches_seen = math.ceil(count / size), 0.0, 0

    def compute(first: int) -> Arrays:
        nonlocal seconds, batches_seen
        rows: dict[str, list[np.ndarray]] = {"features": [], "targets": []}
        options: dict[str, Any] = {
            "shuffle_buffer": recipe.data.shuffle_buffer,
            "on_bad_image": recipe.data.on_bad_image,
        }
        stream = train_batches(data.train, pp, size, recipe.seed, first, **options)  # in the order of the training
        for batch in task.on_host(stream).take(min(_BATCHES_PER_PART, num_batches - first)):
            pixels = np.asarray(to_model_range(batch["image"]))
            before = time.monotonic()
            found = [forward(pixels)[0]]
            if mirrored:
                view = forward(pixels[:, :, ::-1])[0]
                found.append(view[:, :, ::-1] if is_dense else view)  # the patches in the order of the mask
            if batches_seen:  # the first batch compiles the model
                seconds += time.monotonic() - before
            batches_seen += 1
            rows["features"].append(np.stack(found, axis=1))  # [b, V, ..., D]
            rows["targets"].append(_targets(task, batch, found[0].shape))
            bar.update(min(count, bar.done + len(pixels)))
        return {name: np.concatenate(parts) for name, parts in rows.items()}

    with (
        Progress("Features of the training images", count) as bar,
        errors.image_errors(SKIP_ADVICE),
    ):
        parts = []
        for first in range(0, num_batches, _BATCHES_PER_PART):
            parts.append(store.part(first, lambda first=first: compute(first), images))  # type: ignore[misc]
            bar.update(min(count, (first + _BATCHES_PER_PART) * size))
    features, targets = (np.concatenate([part[name] for part in parts])[:count] for name in ("features", "targets"))
    measured = seconds / ((batches_seen - 1) * size * views) if batches_seen > 1 else None
    if is_dense:  # class numbers, -1 for ignored pixels
        planes = targets == np.arange(task.outputs)[:, None, None, None]  # [C, N, Y, X]: faster, as in `on_grid`
        targets = np.moveaxis(planes, 0, -1).astype(np.float32)
    targets = np.asarray(optim.smooth_labels(targets, recipe.label_smoothing), np.float64)
    return np.moveaxis(features, 1, 0), targets, measured


def _targets(task: Any, batch: dict[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return the targets of a batch, or samples of its masks on a grid that is finer than the patches."""
    targets = np.asarray(keras.ops.convert_to_numpy(task.values(None, batch)[1]))
    if targets.ndim < 3:
        return targets
    rows, columns = (
        ((np.arange(_FINER * new) + 0.5) * old / (_FINER * new)).astype(np.int64)
        for new, old in zip(shape[1:3], targets.shape[1:3], strict=True)
    )
    return targets[:, rows[:, None], columns]  # [b, Y, X]


def _number(recipe: recipes.Recipe, data: RunData, views: int, shape: tuple[int | None, ...]) -> int:
    """Return the number of images whose features of this shape are computed, and log if memory limits the number."""
    wanted = min(recipe.head_images, data.train.num_examples)
    bytes_per_image = 8 * _COPIES * views * math.prod(size for size in shape[1:] if size)
    possible = max(1, int(_SHARE_OF_MEMORY * memory.machine_memory()[0] / bytes_per_image))
    if possible < wanted:
        logging.info("The head is fitted to %d of %d images, whose features fit into memory.", possible, wanted)
    return min(wanted, possible)


def _digest(model: keras.Model) -> str:
    """Return a hash of the weights of a model."""
    found = hashlib.sha256()
    for weight in weights(model):
        found.update(weight.path.encode() + keras.ops.convert_to_numpy(weight.value).tobytes())
    return found.hexdigest()
