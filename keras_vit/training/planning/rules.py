"""Rules that choose the settings for training on the user's images.

`docs/how_to/own_images.md` explains the rules, and `docs/results.md` the measurements on which they are based. A rule
takes the facts and the recipe with the user's settings. The rule returns the fields that it sets, by dotted path, and
its reason. `fitting.fit` applies the rules in order.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_vit import models
from keras_vit.data import preprocess
from keras_vit.outputs import Output
from keras_vit.recipe import Recipe

FEW_IMAGES = 20_000  # with fewer images, LoRA is trained, and the run may stop early
FEW_PER_CLASS = 20  # with fewer images per class, only the head is trained
DEFAULT_MODEL = ("ViT-S/14", "ViT_S14:dinov2")  # variant and weights if the user names none
CPU_SECONDS = 30 * 60  # time for the training steps on a CPU without --time
FLOPS_PER_CORE = 3e10  # per second, in float32 training; measured, see the page
MIN_STEPS = 100
FEWEST = 0.25  # minimum share of the steps at a larger image size: pixels matter more than passes
MOST_FOR_HEAD, MOST_MASKS = 20_000, 500  # images to whose features the head is fitted before other weights are trained
HEAD_SHARE = 0.25  # of the time, for these features
ENLARGED, PATCHES = 2, 4  # factor to which the user's small images are enlarged, and minimum number of patches per side
_SHARES = {"head": 1 / 3, "lora": 2 / 3, "bias": 2 / 3}  # operations, relative to training all weights
# Optimizer, learning rate and weight decay by the trained weights. Other adaptations use the same values as LoRA.
_UPDATES = {"all": ("sgd", 3e-3, 0.0), "last": ("sgd", 3e-3, 0.0), "head": ("adamw", 1e-2, 0.0)}

Fields = dict[str, Any]
# Model that is trained from scratch if no weights are available: a ResNet with two stages, then 6 by 6 patches.
SMALL_MODEL: Fields = {
    "model.variant": "R+ViT-Ti/16",
    "model.weights": None,
    "model.image_size": 96,
    "model.arguments": {
        "patch_size": 2,
        "resnet_blocks": (1, 1),
        "hidden_size": 128,
        "num_layers": 4,
        "num_heads": 4,
        "mlp_dim": 256,
        "pooling": "gap",
        "position_embedding": "sincos2d",
    },
}


@dataclasses.dataclass(frozen=True)
class Facts:
    """Facts about the images and the machine.

    Attributes:
        images: Number of training images.
        test_images: Number of images of the evaluation split.
        outputs: Number of classes or values.
        kind: Kind of output of a model that learns the labels.
        gpus: Number of GPUs.
        memory: Bytes of memory of the smallest GPU or, without GPUs, of the machine.
        cores: Number of CPU cores.
        pixels: Side of a square with as many pixels as the median of the user's images; 0 if it is unknown.
    """

    images: int
    test_images: int
    outputs: int
    kind: Output
    gpus: int
    memory: float
    cores: int
    pixels: int = 0

    @property
    def few(self) -> bool:
        """Whether there are fewer than `FEW_IMAGES` training images."""
        return self.images < FEW_IMAGES


Rule = Callable[[Facts, Recipe], tuple[Fields, str]]


def adaptation(facts: Facts, recipe: Recipe) -> tuple[Fields, str]:
    """Choose the weights to train."""
    if recipe.model.weights is None:
        return {"adapt": "all"}, "no weights to start from"
    if facts.kind.has_masks or recipe.model.variant in models.BIT:
        return {"adapt": "all"}, "masks" if facts.kind.has_masks else "a ResNet has no LoRA"
    if facts.images < FEW_PER_CLASS * facts.outputs:
        return {"adapt": "head"}, f"fewer than {FEW_PER_CLASS} images per class"
    return {"adapt": "lora" if facts.few else "all"}, _count(facts.few, FEW_IMAGES)


def update(facts: Facts, recipe: Recipe) -> tuple[Fields, str]:
    """Choose the optimizer, its learning rate and its weight decay."""
    if recipe.model.weights is None:
        (name, rate, decay), reason = ("adamw", 1e-3, 0.05), "from scratch"
    elif facts.kind.has_masks and recipe.adapt.partition("(")[0] in ("all", "last"):
        (name, rate, decay), reason = ("adamw", 1e-4, 0.05), "masks"
    else:
        of = _UPDATES.get(recipe.adapt.partition("(")[0], ("adamw", 1e-3, 0.0))
        (name, rate, decay), reason = of, f"for adapt={recipe.adapt}"
    return {"optim.name": name, "optim.learning_rate": rate, "optim.weight_decay": decay}, reason


def batch(facts: Facts, recipe: Recipe) -> tuple[Fields, str]:
    """Choose the number of images per step, over all devices."""
    few = facts.images < 5_000
    size, reason = (16, "masks") if facts.kind.has_masks else (32 if few else 128, _count(few, 5_000))
    devices = max(1, facts.gpus)
    return {"data.batch_size": devices * -(-size // devices)}, reason


def augmentation(facts: Facts, recipe: Recipe) -> tuple[Fields, str]:
    """Choose the augmentation of the training images, MixUp and label smoothing."""
    size, values = recipe.model.image_size, preprocess.split(recipe.data.pp_eval)[1]
    few = facts.few and not facts.kind.has_masks
    if few and recipe.adapt == "head":
        pp_train = f"decode|resize({size}, antialias=True)|flip_lr|{values}"
        return {"data.pp_train": pp_train}, "few images for the head, so whole ones"
    area = ", 50" if few else ""  # percent of the area of an image
    crop = f"decode|inception_crop({size}{area}, antialias=True)|flip_lr"
    if few or recipe.model.weights is not None or facts.kind.has_masks:
        reason = "few images, so crops of half of the area or more" if few else "crops of any part"
        return {"data.pp_train": f"{crop}|{values}"}, reason
    mixed: Fields = {"data.mixup": 0.2, "label_smoothing": 0.1} if facts.kind.is_exclusive else {}
    return {"data.pp_train": f"{crop}|randaug(2, 10)|{values}", **mixed}, "from scratch"


RULES: dict[str, Rule] = {"adapt": adaptation, "update": update, "batch": batch, "augmentation": augmentation}


def image_sizes(facts: Facts, recipe: Recipe, patch: int) -> list[int]:
    """Return possible image sizes, which are multiples of the patch size, largest first.

    The image size of `recipe` must be the size of its weights.
    """
    size = recipe.model.image_size
    if recipe.model.weights is None:
        return [size]
    sizes: tuple[int, ...] = (size, 3 * size // 4, size // 2)
    sizes = (384, 224) if facts.gpus and size == 224 else (size,) if facts.gpus else sizes
    if facts.pixels:
        largest = max(PATCHES, -(-ENLARGED * facts.pixels // patch)) * patch
        sizes = tuple(min(each, largest) for each in sizes)
    return list(dict.fromkeys(max(patch, each - each % patch) for each in sizes))


def forward_passes(recipe: Recipe) -> float:
    """Return the operations of a training step, relative to the forward pass."""
    return 3 * _SHARES.get(recipe.adapt.partition("(")[0], 1.0)


def seconds_for(facts: Facts, recipe: Recipe, flops: float) -> float:
    """Estimate the seconds that a CPU needs. `flops` is the number of operations if all weights are trained."""
    return flops / 3 * forward_passes(recipe) / (FLOPS_PER_CORE * facts.cores)


def seconds_of_forward(facts: Facts, macs: float) -> float:
    """Estimate the seconds that a CPU needs for the forward pass of an image."""
    return 2 * macs / (FLOPS_PER_CORE * facts.cores)


def head_images(facts: Facts, recipe: Recipe, seconds: float, limit: float) -> int:
    """Choose the number of images to whose features the head is fitted. An image takes some seconds."""
    if recipe.model.weights is None:
        return 0
    is_all = recipe.adapt == "head"
    most = facts.images if is_all else MOST_MASKS if facts.kind.has_masks else MOST_FOR_HEAD
    possible = max(100, int((1.0 if is_all else HEAD_SHARE) * limit / seconds)) if seconds else most
    return min(facts.images, most, possible)


def images_seen(facts: Facts, recipe: Recipe) -> int:
    """Choose the number of images that the training processes, including repetitions."""
    if facts.kind.has_masks:
        return recipe.data.batch_size * (500 if facts.few else 10_000)
    if recipe.model.weights is None:
        return max(60 * facts.images, min(200_000, 10_000 * facts.outputs))
    if facts.few:
        return min(64_000, max(20 * facts.images, 1_000 * facts.outputs))
    return 128 * (10_000 if facts.images < 500_000 else 20_000)  # the steps of BiT-HyperRule


def steps(facts: Facts, recipe: Recipe) -> tuple[Fields, str]:
    """Choose the number of steps."""
    if recipe.adapt == "head" and recipe.head_images:
        return of_steps(0, recipe.data.batch_size, facts.test_images) | {"patience": 0}, "only the head is fitted"
    total = max(MIN_STEPS, round(images_seen(facts, recipe) / recipe.data.batch_size))
    fields = of_steps(total, recipe.data.batch_size, facts.test_images)
    return fields | {"patience": 3 if facts.few else 0}, passes(total * recipe.data.batch_size, facts.images)


def passes(images_seen: int, images: int) -> str:
    """Return a text with the number of passes over the images."""
    return f"{images_seen / images:.3g} passes over {images:,} images"


def of_steps(total: int, batch_size: int, test_images: int) -> Fields:
    """Return the fields that depend on the number of steps: warm-up, and the steps between evaluations.

    There are at most ten evaluations, which together process at most 40% as many images as training does.
    """
    every = -(-total // max(1, min(10, int(0.4 * total * batch_size / max(1, test_images)))))
    intervals = {"eval_every": every, "checkpoint_every": every}
    return {"total_steps": total, "optim.schedule.warmup_steps": min(500, total // 10), **intervals}


def _count(few: bool, number: int) -> str:
    return f"{'fewer' if few else 'not fewer'} than {number:,} images"
