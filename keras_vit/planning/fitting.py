"""Choices that follow from the size of a data set and from the memory of the machine."""

from collections.abc import Callable, Sequence

from absl import logging

from keras_vit import recipe as recipes
from keras_vit.data import open_source, split_sizes
from keras_vit.planning import cost, memory

SIZES = (384, 224)
SHARE_OF_MEMORY = 0.5


def fit(
    recipe: recipes.Recipe,
    image_size: int | None = None,
    change: Callable[[recipes.Recipe], recipes.Recipe] = lambda recipe: recipe,
) -> recipes.Recipe:
    """Return a recipe with the steps and the split that suit its data, and the image size and batch that fit here.

    By default, images have 384 pixels on a GPU with enough memory, otherwise 224. The data are opened. `change` returns
    a recipe with the user's choices, which take precedence. The log states the result.
    """
    changed = change(recipe)
    data, model = changed.data, changed.model
    if model.image_size != recipe.model.image_size:
        image_size = model.image_size
    opened, splits = open_source(data.source, split=data.train_split), split_sizes(data.source)
    warmup, steps = schedule(opened.num_examples)
    gpu = gpu_memory()
    sizes = (image_size,) if image_size else SIZES if gpu else SIZES[-1:]  # a CPU would take days for the larger
    size, parts = what_fits(model.variant, opened.num_classes, gpu or host_memory(), sizes, data.batch_size)
    chosen = {
        "total_steps": steps,
        "eval_every": max(100, steps // 10),
        "data.eval_split": "validation" if "validation" in splits and "test" not in splits else "test",
        "optim.schedule.warmup_steps": warmup,
        "optim.accumulation_steps": parts,
    }
    recipe = change(recipes.replace(recipes.with_image_size(recipe, size), chosen))
    steps, warmup = recipe.total_steps, recipe.optim.schedule.warmup_steps
    logging.info(
        "%s of %s: %s (%d of them warm-up) at %d pixels, a batch of %d in %s",
        *(_counted(opened.num_examples, "image"), _counted(opened.num_classes, "class"), _counted(steps, "step")),
        *(min(warmup, steps), recipe.model.image_size, recipe.data.batch_size),
        _counted(recipe.optim.accumulation_steps, "part"),
    )
    return recipe


def schedule(num_examples: int) -> tuple[int, int]:
    """Return the steps of warm-up and of training for a number of images, as in BiT-HyperRule."""
    return (100, 500) if num_examples < 20_000 else (500, 10_000) if num_examples < 500_000 else (500, 20_000)


def what_fits(
    variant: str, classes: int, available: float, sizes: Sequence[int] = SIZES, batch_size: int = 128
) -> tuple[int, int]:
    """Return the largest image size and the fewest parts of a batch that fit into half of the memory, in bytes."""
    size = 0
    for size in sizes:
        size -= size % 14 if "/14" in variant else 0
        counted = cost.of_variant(variant, classes=classes, image_size=size)
        weights = 12 * counted.parameters  # weight, gradient, momentum
        for parts in (number for number in (1, 2, 4, 8, 16, 32) if batch_size % number == 0):
            gradients = 4 * counted.parameters if parts > 1 else 0
            activations = 4 * cost.UNFUSED * counted.activations * batch_size / parts
            if weights + gradients + activations <= SHARE_OF_MEMORY * available:
                return size, parts
    return size, batch_size


def host_memory() -> float:
    """Return the bytes of memory of this machine or its container."""
    return memory.machine_memory()[0]


def gpu_memory() -> float | None:
    """Return the bytes of memory of the first GPU that TensorFlow sees, or None."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0]).get("memory_size") or 16e9 if gpus else None


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")
