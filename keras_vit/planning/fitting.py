"""Choices that follow from the size of a data set and from the memory of the machine."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from keras_vit import recipe as recipes
from keras_vit.data import open_source, split_sizes
from keras_vit.data.sources import StoredSource
from keras_vit.planning import memory, plan

SIZES = (384, 224)
SHARE_OF_MEMORY = 0.5
FEW_IMAGES = 20_000  # of fewer, the best score may come long before the last step
IMBALANCE = 3  # times as many images in the largest class as in the smallest
_UNKNOWN_GPU = 16e9  # bytes
# Fields of a recipe for data with masks, whose images have many labels each.
SEGMENTATION: dict[str, Any] = {
    "task": "segmentation",
    "evaluators": (),
    "data.batch_size": 16,
    "optim.name": "adamw",
    "optim.learning_rate": 1e-4,
    "optim.weight_decay": 0.05,
}


def fit(recipe: recipes.Recipe, change: Callable[[recipes.Recipe], recipes.Recipe]) -> recipes.Recipe:
    """Return a recipe with the steps and the split that suit its data, and the image size and batch that fit here.

    Images have 384 pixels on a GPU with enough memory, otherwise 224. The data are opened. `change` returns a recipe
    with the user's choices, which take precedence. The log states the result.
    """
    data = change(recipe).data
    opened, splits = open_source(data.source, split=data.train_split), split_sizes(data.source)
    warmup, steps = schedule(opened.num_examples)
    chosen: dict[str, Any] = {
        "total_steps": steps,
        "eval_every": max(100, steps // 10),
        "stop_after": 3 if opened.num_examples < FEW_IMAGES else 0,
        "data.eval_split": "validation" if "validation" in splits and "test" not in splits else "test",
        "optim.schedule.warmup_steps": warmup,
    }
    if opened.label_kind == "values":
        chosen |= {"task": "regression", "evaluators": ()}  # those of the recipe are for classes
    elif opened.label_kind == "mask" and recipe.task.labels != "masks":
        chosen |= SEGMENTATION
    recipe = what_fits(recipes.replace(recipe, chosen), opened.num_outputs, change)
    steps, warmup = recipe.total_steps, recipe.optim.schedule.warmup_steps
    logging.info(
        "%s of %s: %s (%d of them warm-up) at %d pixels, a batch of %d in %s",
        *(
            _counted(opened.num_examples, "image"),
            _counted(opened.num_outputs, "value" if opened.value_names else "class"),
            _counted(steps, "step"),
        ),
        *(min(warmup, steps), recipe.model.image_size, recipe.data.batch_size),
        _counted(recipe.optim.accumulation_steps, "part"),
    )
    if isinstance(opened, StoredSource) and opened.label_kind == "class" and not recipe.class_balance:
        warn_of_imbalance(opened)  # of others, the labels would have to be read
    return recipe


def warn_of_imbalance(source: StoredSource) -> None:
    """Log by how much the numbers of images of the classes differ, if they differ much."""
    counts = np.bincount(source.labels(), minlength=source.num_classes)
    most, fewest = int(counts.argmax()), int(counts.argmin())
    if counts[most] >= IMBALANCE * counts[fewest]:
        logging.warning(
            "The classes have different numbers of images, from %d of %r to %d of %r. --config.class_balance=1 makes "
            "all classes count alike in the loss; compare the balanced accuracies.",
            *(counts[fewest], source.class_names[fewest], counts[most], source.class_names[most]),
        )


def schedule(num_examples: int) -> tuple[int, int]:
    """Return the steps of warm-up and of training for a number of images, as in BiT-HyperRule."""
    return (100, 500) if num_examples < 20_000 else (500, 10_000) if num_examples < 500_000 else (500, 20_000)


def what_fits(
    recipe: recipes.Recipe,
    classes: int,
    change: Callable[[recipes.Recipe], recipes.Recipe] = lambda recipe: recipe,
) -> recipes.Recipe:
    """Return the recipe with the largest images and the fewest parts of a batch that fit into half of the memory."""
    on_gpu, available = device_memory()
    sizes = SIZES if on_gpu else SIZES[-1:]  # a CPU would take days for the larger
    changed = change(recipe)
    step, batch_size = 14 if "/14" in changed.model.variant else 1, changed.data.batch_size
    sized = [recipes.with_image_size(recipe, size - size % step) for size in sizes]
    # Where the user chose a size, there is only that one.
    wanted = list(dict.fromkeys(change(each).model.image_size for each in sized))
    choices = [(size, parts) for size in wanted for parts in (1, 2, 4, 8, 16, 32) if batch_size % parts == 0]
    for size, parts in [*choices, (wanted[-1], batch_size)]:
        found = recipes.replace(recipes.with_image_size(recipe, size), {"optim.accumulation_steps": parts})
        found = change(found)
        planned = plan.of_recipe(found, classes)
        if planned.total_bytes - on_gpu * planned.host_bytes <= SHARE_OF_MEMORY * available:
            break
    return found


def device_memory() -> tuple[bool, float]:
    """Return whether TensorFlow sees a GPU, and the bytes of memory of that GPU, or else of this machine."""
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return False, memory.machine_memory()[0]
    total = memory.gpu_memory()
    return True, total if math.isfinite(total) else _UNKNOWN_GPU


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")
