"""Choice of settings for the user's images, the model and the machine, by the rules in `planning.rules`."""

import contextlib
import dataclasses
import itertools
import math
import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit import recipe as recipes
from keras_vit import zoo
from keras_vit.checkpoints import architecture_of
from keras_vit.data import Source, headers, open_source, preprocess, split_sizes, splits
from keras_vit.data.sources import StoredSource
from keras_vit.training.planning import memory, plan, rules
from keras_vit.util.progress import duration
from keras_vit.zoo import hub

SHARE_OF_MEMORY = 0.5
FEWEST_PER_CLASS = 4  # minimum of training images for holding some out to choose the best checkpoint
FEWEST_HELD_OUT = 10  # images that choose; the choice of fewer images would be random
IMBALANCE = 3  # times as many images in the largest class as in the smallest
_UNKNOWN_GPU = 16e9  # bytes
_MEASURED_IMAGES = 32
# Fields that the rules set. A resumed run keeps them.
FIELDS = (
    *("task", "loss", "adapt", "label_smoothing", "total_steps", "eval_every", "checkpoint_every", "patience"),
    "head_images",
    *("optim.name", "optim.learning_rate", "optim.weight_decay"),
    *("optim.schedule.warmup_steps", "model.image_size", "data.batch_size", "data.mixup"),
    *("data.train_split", "data.eval_split", "data.test_split", "data.pp_train", "data.pp_eval"),
)
MODEL_FIELDS = ("model.variant", "model.weights", "model.arguments")  # set only if the user names no model
Change = Callable[[recipes.Recipe], recipes.Recipe]


def fit(recipe: recipes.Recipe, change: Change) -> recipes.Recipe:
    """Return a recipe with settings that suit its images, its model and this machine.

    The function opens the data, and logs the settings and their reasons in six lines. `change` applies the user's
    settings to a recipe; they take precedence.

    Raises:
        ValueError: If there are too few images.
    """
    recipe, opened = _with_splits(recipe, change)
    data = change(recipe).data
    tested = open_source(data.source, split=data.eval_split).num_examples
    counts = (opened.num_examples, tested, opened.num_outputs)
    facts = rules.Facts(*counts, opened.kind, *machine(), pixels=typical_pixels(opened))
    if opened.label_kind != recipe.task.labels:
        recipe = recipes.replace(recipe, {"task": opened.kind.task, "loss": opened.kind.loss})
    recipe = _with_weights(recipe, change)
    reasons: dict[str, str] = {}
    for name, rule in rules.RULES.items():
        # Preprocessing strings are written for the image size of the recipe; `change` applies the user's size later.
        wanted = recipes.replace(change(recipe), {"model.image_size": recipe.model.image_size})
        fields, reasons[name] = rule(facts, wanted)
        recipe = recipes.replace(recipe, fields)
    recipe, of_machine = _that_fits(recipe, change, facts)
    recipe = _with_all_images(recipe, change, facts)
    data = change(recipe).data
    if data.eval_split == data.test_split:
        recipe = recipes.replace(recipe, {"patience": 0})  # there are no validation images
    _log(recipe, change(recipe), reasons | of_machine)
    recipe = change(recipe)
    if isinstance(opened, StoredSource) and facts.kind.is_exclusive and not recipe.class_weight_exponent:
        warn_of_imbalance(opened)  # other sources would have to read all labels first
    return recipe


def _with_splits(recipe: recipes.Recipe, change: Change) -> tuple[recipes.Recipe, Source]:
    """Return the recipe with the splits that train, choose and test, and the opened training split.

    Without a split "validation", a part of the training images is held out, or none if there are too few.
    """
    given = change(recipe).data
    opened, sizes = open_source(given.source, split=given.train_split), split_sizes(given.source)
    classes, test = opened.num_classes if opened.kind.is_exclusive else 1, "test" if "test" in sizes else None
    enough = max(FEWEST_PER_CLASS * classes, FEWEST_HELD_OUT * splits.HELD_OUT)
    fit, validation = (f"{part}({given.train_split})" for part in ("fit", "validation"))
    divided = recipes.replace(recipe, {"data.train_split": fit, "data.eval_split": validation, "data.test_split": test})
    kept = change(divided).data
    if opened.num_examples < 2 * classes or not ({"validation", test} & set(sizes) or opened.num_examples >= enough):
        raise ValueError(
            f"Expected at least {2 * classes} images to train on, two per class, and one to test with. Received: "
            f"{opened.num_examples} in {given.train_split!r} of {given.source!r}, which has {', '.join(sizes)}. "
            "Add images, or set data.eval_split."
        )
    if "validation" in sizes:
        reported = None if kept.eval_split == test else test
        return recipes.replace(recipe, {"data.eval_split": "validation", "data.test_split": reported}), opened
    if (kept.train_split, kept.eval_split) != (fit, validation):  # the user, or the start of the run, has chosen them
        return recipes.replace(recipe, {"data.eval_split": test or given.eval_split}), opened
    if opened.num_examples >= enough:
        return divided, open_source(given.source, split=fit)
    text = "No validation images: %d training images are too few to hold some out (at least %d)."
    logging.info(f"{text} The last checkpoint is used.", opened.num_examples, enough)
    return recipes.replace(recipe, {"data.eval_split": test, "data.test_split": test}), opened


def _with_all_images(recipe: recipes.Recipe, change: Change, facts: rules.Facts) -> recipes.Recipe:
    """Return the recipe with all training images if only a head is fitted: cross-validation chooses its strength."""
    used = change(recipe)
    (part, whole), test = splits.part_of(used.data.train_split), used.data.test_split
    if used.total_steps or not part or not test:
        return recipe
    count = used.head_images
    if count == facts.images:  # not limited by the time: the images that were held out are added
        count += facts.test_images
    fields = {"data.train_split": whole, "data.eval_split": test, "head_images": count}
    undivided = recipes.replace(recipe, fields)
    given = change(undivided).data  # with the splits of the user, who may have chosen only one of them
    return undivided if (given.train_split, given.eval_split) == (whole, test) else recipe


def _with_weights(recipe: recipes.Recipe, change: Change) -> recipes.Recipe:
    """Return the recipe, with a small model if the default weights are needed but unavailable."""
    wanted = change(recipe).model
    if (recipe.model.variant, recipe.model.weights) != rules.DEFAULT_MODEL or wanted.variant != recipe.model.variant:
        return recipe
    if wanted.weights is not None and wanted.weights == recipe.model.weights:
        try:
            zoo.resolve(wanted.weights)
            return recipe
        except (OSError, ImportError) as error:
            logging.warning(
                "No weights: %s A small model is trained from scratch instead, which is much less accurate on few "
                "images. --model names other weights.",
                error,
            )
    elif wanted.weights is not None:
        return recipe
    sized = recipes.with_image_size(recipe, rules.SMALL_MODEL["model.image_size"])
    return recipes.replace(sized, rules.SMALL_MODEL)


def _that_fits(recipe: recipes.Recipe, change: Change, facts: rules.Facts) -> tuple[recipes.Recipe, dict[str, str]]:
    """Return the recipe with the largest image size at which training fits into time and memory, and the reasons.

    Training may take half of the memory. The batch is divided into as few parts as possible. An image size is also
    accepted if the time suffices for only a part of the steps, but at least a quarter. The number of steps is then
    reduced.
    """
    wanted, devices = change(recipe), max(1, facts.gpus)
    limit, local = wanted.time or rules.CPU_SECONDS, wanted.data.batch_size // devices
    of_weights = recipes.replace(wanted, {"model.image_size": recipe.model.image_size})
    sizes = rules.image_sizes(facts, of_weights, _patch(wanted.model))
    # If the user chose the image size or the parts, no others are tried.
    possible = list(dict.fromkeys(change(recipes.with_image_size(recipe, size)).model.image_size for size in sizes))
    own = "from scratch" if wanted.model.weights is None else "the size of the weights"
    if sizes[0] < of_weights.model.image_size:
        own = f"for images of {facts.pixels} pixels"
    reasons = {"images": own if possible == sizes else "given"}
    for size in possible:
        base = recipes.with_image_size(recipe, size)
        planned = plan.of_recipe(change(base), facts.outputs, devices=devices)
        forward = 0.0 if facts.gpus else rules.seconds_of_forward(facts, planned.cost.macs)
        base = recipes.replace(base, {"head_images": rules.head_images(facts, change(base), forward, limit)})
        fields, reasons["steps"] = rules.steps(facts, change(base))
        base = recipes.replace(base, {**fields, "optim.accumulation_steps": 1})
        found = change(base)
        if users := found.total_steps != fields["total_steps"]:  # warm-up and intervals depend on this number
            steps, reasons["steps"] = found.total_steps, "given"
            base = recipes.replace(base, rules.of_steps(steps, found.data.batch_size, facts.test_images))
            found = change(base)
        planned, given = plan.of_recipe(found, facts.outputs, devices=devices), found.optim.accumulation_steps
        for parts in [given] if given > 1 else [*(n for n in (1, 2, 4, 8, 16, 32) if local % n == 0), local]:
            in_parts = dataclasses.replace(planned, peak_bytes=planned.peak_bytes * given / parts)
            fits = in_parts.total_bytes(on_gpu=facts.gpus > 0) <= SHARE_OF_MEMORY * facts.memory
            if fits:
                break
        base = recipes.replace(base, {"optim.accumulation_steps": parts if given == 1 else 1})
        per_step = 0 if facts.gpus else rules.seconds_for(facts, found, planned.step_flops)
        is_fit = not found.total_steps  # of the head to features, without steps
        seconds = facts.images * forward if is_fit else found.total_steps * per_step
        # The number of steps is reduced below, unless the user chose it.
        if fits and seconds <= limit / (1 if users or is_fit else rules.FEWEST):
            break
        if len(possible) > 1:
            reasons["images"] = "larger images take " + (
                f"too long for {duration(limit)}" if fits else "too much memory"
            )
    if seconds > limit and not users and not is_fit:
        total = max(rules.MIN_STEPS, int(limit / per_step))
        base = recipes.replace(base, rules.of_steps(total, found.data.batch_size, facts.test_images))
        reasons["steps"] = (
            f"{rules.passes(total * found.data.batch_size, facts.images)}, in about {duration(total * per_step)}"
        )
    return base, reasons


def _patch(model: recipes.Model) -> int:
    """Return the patch size of a model, from its initial weights if they are available."""
    path, patch = model.weights, int(model.variant.partition("/")[2] or 1)
    if path and (os.path.exists(path) or hub.canonical_name(path)):
        patch = np.max(architecture_of(path)[1].get("patch_size") or 1)
    return int(np.max(model.arguments.get("patch_size", patch)))


def _log(chosen: recipes.Recipe, used: recipes.Recipe, reasons: dict[str, str]) -> None:
    """Log the final settings in six lines, with the reasons for the settings that the rules chose."""
    augmentation, values = preprocess.split(used.data.pp_train)
    model, data, optim, parts = used.model, used.data, used.optim, used.optim.accumulation_steps
    warmup = min(optim.schedule.warmup_steps, used.total_steps)
    steps = f"{used.total_steps} step{'s'[: used.total_steps != 1]}"
    steps += f", {warmup} of them warm-up" if used.total_steps else ""
    if used.time and used.total_steps:
        steps = f"as many as fit into {duration(used.time)}, after some are measured"
    decay = f", weight decay {optim.weight_decay:g}" if optim.weight_decay else ""
    head = f", the head is first fitted to features of {used.head_images:,} images" if used.head_images else ""
    mixed = f", mixup {data.mixup:g}" if data.mixup else ""
    mixed += f", label smoothing {used.label_smoothing:g}" if used.label_smoothing else ""
    lines: dict[str, tuple[str, tuple[str, ...]]] = {
        "adapt": (f"model: {model.variant} from {model.weights or 'scratch'}, adapt={used.adapt}{head}", ("adapt",)),
        "images": (f"images: {model.image_size} pixels, {values}", ("model.image_size",)),
        "batch": (
            f"batch: {data.batch_size} in {parts} part{'s'[: parts != 1]}",
            ("data.batch_size", "optim.accumulation_steps"),
        ),
        "steps": (f"steps: {steps}", ("total_steps", "time") if used.total_steps else ("total_steps",)),
        "update": (
            f"update: {optim.name}, rate {optim.learning_rate:g}{decay}",
            ("optim.name", "optim.learning_rate", "optim.weight_decay"),
        ),
        "augmentation": (
            f"augmentation: {augmentation.removeprefix('decode|')}{mixed}",
            ("data.pp_train", "data.mixup", "label_smoothing"),
        ),
    }
    for name, (line, fields) in lines.items():
        same = all(recipes.get(chosen, field) == recipes.get(used, field) for field in fields)
        logging.info("%s (%s)", line, reasons[name] if same else "given")


def warn_of_imbalance(source: StoredSource) -> None:
    """Log a warning if the classes have very different numbers of images."""
    counts = np.bincount(source.labels(), minlength=source.num_classes)
    most, fewest = int(counts.argmax()), int(counts.argmin())
    if counts[most] >= IMBALANCE * counts[fewest]:
        logging.warning(
            "The classes have different numbers of images, from %d of %r to %d of %r. "
            "--config.class_weight_exponent=1 gives all classes equal weight in the loss; compare the balanced "
            "accuracies.",
            *(counts[fewest], source.class_names[fewest], counts[most], source.class_names[most]),
        )


def typical_pixels(source: Source) -> int:
    """Return the side of a square with as many pixels as the median of the first images; 0 if it is unknown."""
    counts = []
    for _, item in itertools.islice(source.items(), _MEASURED_IMAGES):
        with contextlib.suppress(tf.errors.OpError):  # reported when the image is used
            image = source.load(item)["image"]
            counts.append(int(headers.pixel_count(image)) if image.dtype == tf.string else math.prod(image.shape[:2]))
    return round(math.sqrt(np.median(counts))) if counts else 0


def machine() -> tuple[int, float, int]:
    """Return the number of GPUs, the memory of a GPU (or of this machine) in bytes, and the number of CPU cores."""
    gpus, cores = len(tf.config.list_physical_devices("GPU")), os.cpu_count() or 1
    if not gpus:
        return 0, memory.machine_memory()[0], cores
    total = memory.gpu_memory()
    return gpus, total if math.isfinite(total) else _UNKNOWN_GPU, cores
