"""Fine-tuning of the AugReg checkpoints, as in big_vision.

Paper: "How to train your ViT?", https://arxiv.org/abs/2106.10270, section 3.4

    keras-vit train --config=augreg_transfer:ViT_B32,pets --workdir=runs/pets \
        --config.model.weights=B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0.npz
    keras-vit train --config=augreg_transfer:ViT_B32,imagenet2012,inception --workdir=runs/i1k

Data sets: imagenet2012, cifar10, cifar100, pets, flowers.
Crops: inception, resmall (resizes the smaller side to 448, then crops at random), resize (resizes the image to
448 x 448, then crops at random).
Published, B/32 at 384 pixels, with the learning rate: ImageNet 83.27% (0.03, inception), CIFAR-10 98.55% (0.003),
CIFAR-100 91.35% (0.01), Pets 93.78% (0.003), Flowers 99.43% (0.003). Not run here.
Cost: 0.25 TPUv3-core-days for B/32 on CIFAR-10 by `keras-vit plan`.
Smaller machines: `--config.optim.accumulation_steps=64`; Pets and Flowers only take 500 steps.
"""

from keras_vit import models, recipe

from . import common

# Source, training split, evaluation split, held-out split, steps, warm-up steps, published learning rate.
DATA = {
    "imagenet2012": ("tfds:imagenet2012", "train[:99%]", "validation", "train[99%:]", 20_000, 500, 0.03),
    "cifar10": ("tfds:cifar10", "train[:98%]", "test", "train[98%:]", 10_000, 500, 0.003),
    "cifar100": ("tfds:cifar100", "train[:98%]", "test", "train[98%:]", 10_000, 500, 0.01),
    "pets": ("tfds:oxford_iiit_pet", "train[:90%]", "test", "train[90%:]", 500, 100, 0.003),
    "flowers": ("tfds:oxford_flowers102", "train[:90%]", "test", "train[90%:]", 500, 100, 0.003),
}
CROPS = {
    "resmall": "resize_small(448)|random_crop(384)",
    "inception": "inception_crop(384)",
    "resize": "resize(448)|random_crop(384)",
}


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The arguments are the variant, the data set and the crop."""
    variant, dataset, crop = common.arguments(arguments, "ViT_B32", "cifar10", "resmall")
    variant = common.variant(variant, models.VIT)
    if dataset not in DATA or crop not in CROPS:
        raise ValueError(
            f"The data set must be one of {', '.join(DATA)} and the crop one of {', '.join(CROPS)}. "
            f"Received: {dataset!r} and {crop!r}"
        )
    source, train_split, eval_split, held_out, steps, warmup, rate = DATA[dataset]
    return recipe.Recipe(
        total_steps=steps,
        precision="mixed_bfloat16",
        deterministic=False,
        log_every=50,
        eval_every=100 if steps < 10_000 else 1_000,
        checkpoint_every=1_000,
        evaluators=(f"classification(name='held_out', split='{held_out}')",),
        model=common.published_model(variant, "augreg-imagenet21k", image_size=384),
        data=recipe.Data(
            source=source,
            train_split=train_split,
            eval_split=eval_split,
            pp_train=f"decode|{CROPS[crop]}|flip_lr|value_range(-1, 1)",
            pp_eval="decode|resize_small(448)|central_crop(384)|value_range(-1, 1)",
            batch_size=512,
            shuffle_buffer=50_000,
        ),
        optim=recipe.Optim(
            "sgd",
            learning_rate=rate,
            schedule=recipe.Schedule("cosine", warmup_steps=warmup),
            momentum=0.9,
            momentum_dtype="bfloat16",
            weight_decay=0.0,
            clip_norm=1.0,
        ),
    )
