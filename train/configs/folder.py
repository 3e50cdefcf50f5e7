"""Fine-tuning of a published checkpoint on your own pictures.

    python -m train.main --config=train/configs/folder.py:/pictures --workdir=runs/pictures \
        --config.model.checkpoint=ViT-B_16.npz
    python -m train.main --config=train/configs/folder.py:/pictures,ViT_S16 --workdir=runs/pictures \
        --config.model.checkpoint=S_16.npz

`/pictures` holds a folder a class (`/pictures/rose/1.jpg`), or `train/` and `test/` with such folders; without them a
fifth is kept for testing. Chosen for you, and shown in the log: the number of steps from the number of pictures, as
BiT-HyperRule does (https://arxiv.org/abs/1912.11370); the size of the images and the part of a batch that is computed
at a time from this machine's memory. Momentum and the rate of the ViT paper for small data sets.
Cost: 500 steps of batch 128 for up to 20,000 pictures: minutes on a GPU, hours on a CPU.
Smaller machines: the choice is made for the machine; `:/pictures,ViT_Ti16` is the fastest model.
A picture that cannot be read stops the run: `--config.data.on_bad_image=skip` leaves it out and lists it.
"""

import os

from absl import logging

from keras_vit import data, recipe
from keras_vit.benchmarking import cost
from keras_vit.training import presets

BATCH = 128
SIZES = (384, 224)
SHARE_OF_MEMORY = 0.5


def get_config(arguments: str = "") -> recipe.Recipe:
    """Returns the recipe; the arguments are the folder and the variant."""
    folder, variant = presets.arguments(arguments, "pictures", "ViT_B16")
    variant = presets.variant(variant)
    source = folder if ":" in folder else f"folder:{folder}"
    opened = data.open_source(source, split="train")
    supports = presets.hyperrule(opened.num_examples, 256, 256).supports
    size, parts = what_fits(variant, opened.num_classes, memory())
    logging.info(
        "%d pictures of %d classes: %d steps at %d pixels, a batch of %d in %d parts",
        *(opened.num_examples, opened.num_classes, supports[-1], size, BATCH, parts),
    )
    return recipe.Recipe(
        total_steps=supports[-1],
        deterministic=False,
        log_every=10,
        eval_every=max(100, supports[-1] // 10),
        checkpoint_every=100,
        evaluators=("knn(neighbours=(1, 10))",),
        model=recipe.Model(variant, image_size=size, checkpoint=presets.published_file(variant), head="reset"),
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


def what_fits(variant: str, classes: int, available: float) -> tuple[int, int]:
    """The largest image size, and the least number of parts of a batch, for which training takes half of the memory."""
    for size in SIZES:
        size -= size % 14 if "/14" in variant else 0
        counted = cost.of_variant(variant, classes=classes, image_size=size)
        weights = 12 * counted.parameters  # weight, gradient, momentum
        for parts in (1, 2, 4, 8, 16, 32):
            gradients = 4 * counted.parameters if parts > 1 else 0
            activations = 4 * cost.UNFUSED * counted.activations * BATCH / parts
            if weights + gradients + activations <= SHARE_OF_MEMORY * available:
                return size, parts
    return SIZES[-1] - (SIZES[-1] % 14 if "/14" in variant else 0), BATCH


def memory() -> float:
    """Bytes of memory of this machine's GPU, or else of the machine itself."""
    return gpu_memory() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def gpu_memory() -> float | None:
    """Bytes of memory of the first GPU that TensorFlow sees, or None."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    return tf.config.experimental.get_device_details(gpus[0]).get("memory_size") or 16e9
