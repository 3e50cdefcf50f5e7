"""Fine-tuning of a published checkpoint on your own images.

    keras-vit train folder:/images
    keras-vit train folder:/images --model=ViT_S16 --weights=augreg --image_size=224
    python -m train.main --config=train/configs/folder.py:/images,ViT_S16 --workdir=runs/images

`/images` holds one folder per class, such as `/images/rose/1.jpg`. It may also hold `train/` and `test/` with such
folders. Without them, a fifth of the images is kept for testing.

The recipe chooses three things and shows them in the log:

- The number of steps follows from the number of images, as in BiT-HyperRule (https://arxiv.org/abs/1912.11370).
- Images have 384 pixels on a GPU with enough memory, and 224 otherwise. `--image_size` chooses another size.
- A batch is computed in as many parts as the memory requires.

Momentum and learning rate are those of the ViT paper for small data sets. An image that cannot be read stops the run.
`--config.data.on_bad_image=skip` leaves such images out and lists them.

Cost: 500 steps of batch 128 for up to 20,000 images. The log estimates the time of the choice. Three examples:
B/16 at 384 pixels takes 2.1e16 operations, which is 36 minutes on a GPU that does 1e13 per second. B/16 at 224 pixels
takes 6.7e15, which is nine hours on two CPU cores that do 1e11 each. Ti/16 takes 4.8e14 there, 40 minutes.
Smaller machines: the choices fit the machine. `--model=ViT_Ti16` is the fastest model. `--config.total_steps=100` does
a fifth of the work.
"""

import os
from collections.abc import Sequence

from absl import logging

from keras_vit import models, recipe
from keras_vit.data import open_source
from keras_vit.planning import cost

from . import common

DEFAULT_FOLDER, DEFAULT_VARIANT = "images", "ViT-B/16"
BATCH = 128
SIZES = (384, 224)
SHARE_OF_MEMORY = 0.5
# Operations per second that the estimate assumes. A core: measured for ViT-B/16, docs/benchmarks.md; a GPU: a guess.
CPU_CORE, GPU = 1e11, 1e13


def get_config(
    arguments: str = "", *, data: str | None = None, model: str | None = None, image_size: int | None = None
) -> recipe.Recipe:
    """Return the recipe; the arguments are the folder and the variant, in one text or each by its name."""
    folder, variant = folder_and_variant(arguments)
    folder, variant = data or folder, common.variant(model) if model else variant
    source = folder if ":" in folder else f"folder:{folder}"
    opened = open_source(source, split="train")
    supports = common.hyperrule(opened.num_examples, 256, 256).supports
    gpu = gpu_memory()
    sizes = (image_size,) if image_size else SIZES if gpu else SIZES[-1:]  # a CPU would take days for the larger
    size, parts = what_fits(variant, opened.num_classes, gpu or host_memory(), sizes)
    logging.info(
        "%d images of %d classes: %d steps at %d pixels, a batch of %d in %d parts",
        *(opened.num_examples, opened.num_classes, supports[-1], size, BATCH, parts),
    )
    logging.info(
        "%s", estimate(cost.of_variant(variant, classes=opened.num_classes, image_size=size), supports[-1], gpu)
    )
    return recipe.Recipe(
        total_steps=supports[-1],
        deterministic=False,
        log_every=10,
        eval_every=max(100, supports[-1] // 10),
        checkpoint_every=100,
        evaluators=("knn(neighbors=(1, 10))",),
        model=common.published_model(variant, image_size=size),
        data=recipe.Data(
            source=source,
            train_split="train",
            eval_split="test",
            pp_train=f"decode|inception_crop({size})|flip_lr|value_range(-1, 1)",
            pp_eval=f"decode|resize({size})|value_range(-1, 1)",
            batch_size=BATCH,
        ),
        optim=recipe.Optim(
            "sgd",
            learning_rate=0.003,
            schedule=recipe.Schedule("cosine", warmup_steps=supports[0]),
            momentum=0.9,
            weight_decay=0.0,
            clip_norm=1.0,
            accumulation_steps=parts,
        ),
    )


def folder_and_variant(arguments: str) -> tuple[str, str]:
    """Split the argument into a folder, whose name may hold commas, and a variant, which may be left out."""
    folder, comma, variant = (arguments or "").rpartition(",")
    is_variant = variant.strip() in ("", *models.list_models(), *map(common.constructor_name, models.list_models()))
    is_typo = os.path.isdir(folder.removeprefix("folder:")) and not os.path.isdir(arguments.removeprefix("folder:"))
    if comma and (is_variant or is_typo):
        return folder.strip() or DEFAULT_FOLDER, common.variant(variant.strip() or DEFAULT_VARIANT)
    return (arguments or "").strip() or DEFAULT_FOLDER, DEFAULT_VARIANT


def what_fits(variant: str, classes: int, available: float, sizes: Sequence[int] = SIZES) -> tuple[int, int]:
    """Return the largest image size and the fewest parts of a batch that fit into half of the memory."""
    for size in sizes:
        size -= size % 14 if "/14" in variant else 0
        counted = cost.of_variant(variant, classes=classes, image_size=size)
        weights = 12 * counted.parameters  # weight, gradient, momentum
        for parts in (1, 2, 4, 8, 16, 32):
            gradients = 4 * counted.parameters if parts > 1 else 0
            activations = 4 * cost.UNFUSED * counted.activations * BATCH / parts
            if weights + gradients + activations <= SHARE_OF_MEMORY * available:
                return size, parts
    return sizes[-1] - (sizes[-1] % 14 if "/14" in variant else 0), BATCH


def estimate(counted: cost.Cost, steps: int, gpu: float | None) -> str:
    """Return the operations of the run, and its time at an assumed rate, in words."""
    operations = counted.training_flops * BATCH * steps
    cores = os.cpu_count() or 1
    rate = GPU if gpu else CPU_CORE * cores
    device = "the GPU does" if gpu else f"{cores} CPU cores do"
    return f"{operations:.2g} operations: {operations / rate / 3_600:.1f} hours if {device} {rate:.1g} a second"


def host_memory() -> float:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gpu_memory() -> float | None:
    """Return the bytes of memory of the first GPU that TensorFlow sees, or None."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    return tf.config.experimental.get_device_details(gpus[0]).get("memory_size") or 16e9
