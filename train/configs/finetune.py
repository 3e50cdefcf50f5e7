"""Fine-tuning of published weights, as in the ViT paper.

Paper: "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929, appendix B.1.1 and table 4

    keras-vit train --config=finetune:ViT_B16,cifar10 --workdir=runs/cifar10 \
        --config.model.weights=ViT-B_16.npz
    keras-vit train --config=finetune:ViT_L16,imagenet2012 --workdir=runs/l16
    keras-vit train --config=finetune:ViT_B16,vtab:svhn --workdir=runs/svhn

Data sets: imagenet2012, cifar10, cifar100, pets, flowers, and vtab:TASK (see `keras_vit.evaluators.vtab.TASKS`).
Settings: SGD with momentum, batches of 512, cosine schedule, gradient clipping at 1, no weight decay. The image size is
384 pixels. On ImageNet, it is 512 pixels for L/16 and 518 pixels for H/14, both with a Polyak average of 0.9999.
Learning rates: the paper chooses them on held-out data, from 0.003, 0.01, 0.03 and 0.06 for ImageNet, and from 0.001,
0.003, 0.01 and 0.03 for other data. `--learning_rate=0.01` sets the learning rate.
For H/14 on other data, the image size is 378 pixels, or 27 patches per side. The paper uses 384 pixels, of which the
patches do not cover the last six.
Dropout: 0.1 for L/16, H/14 and the R50 hybrids, and 0 for the other models, as in the published configurations.
VTAB: as in BiT, images are cropped (384 of 448 pixels) and flipped, except for tasks whose labels would change. These
tasks are in `WITHOUT_CROP` and `WITHOUT_FLIP`, from appendix F of https://arxiv.org/abs/1912.11370.
Published for these settings, from ImageNet-21k. B/16: CIFAR-10 99.02%, CIFAR-100 92.06%, ImageNet 84.53%. L/16:
CIFAR-10 99.14%, CIFAR-100 93.22%, ImageNet 85.30% at 512 pixels with the average, and 85.05% at 384 pixels without it.
Not run here.
Cost: B/16 takes 2.2 hours on CIFAR-10 and 6.5 hours on ImageNet, as published, on an unknown number of A100s;
1.1 and 2.1 TPUv3-core-days by `keras-vit plan`.
Data: TensorFlow Datasets downloads CIFAR, Pets and Flowers automatically.
Smaller machines: short schedules are almost as accurate. `--steps=500
--config.optim.schedule.warmup_steps=50` reaches 98.59% on CIFAR-10, as published. A step has 8 micro-batches.
`--config.optim.accumulation_steps=64` takes an eighth of the memory, and `--config.model.remat=blocks` saves more.
"""

from keras_vit import models, recipe
from keras_vit.evaluators import vtab

from . import common

# Source, training split, evaluation split, steps, warm-up steps, learning rate.
DATA = {
    "imagenet2012": ("tfds:imagenet2012", "train[:99%]", "validation", 20_000, 500, 0.03),
    "cifar10": ("tfds:cifar10", "train[:98%]", "test", 10_000, 500, 0.03),
    "cifar100": ("tfds:cifar100", "train[:98%]", "test", 10_000, 500, 0.03),
    "pets": ("tfds:oxford_iiit_pet", "train", "test", 500, 100, 0.03),
    "flowers": ("tfds:oxford_flowers102", "train+validation", "test", 500, 100, 0.03),
}
VTAB = ("train800val200", "test", 2_500, 500, 0.01)
WITH_DROPOUT = ("ViT-L/16", "ViT-H/14", "R50+ViT-B/16", "R50+ViT-L/32")
LARGE = {"ViT-L/16": 512, "ViT-H/14": 518}  # image size on ImageNet

# Tasks of VTAB whose labels (a position, an angle, a number of objects) change if images are cropped or flipped.
WITHOUT_CROP = ("clevr_count", "clevr_distance", "dmlab", "kitti_distance", "dsprites_location")
WITHOUT_FLIP = ("dsprites_location", "dsprites_orientation", "smallnorb_azimuth")


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The arguments are the variant and the data set."""
    variant, dataset = common.arguments(arguments, "ViT_B16", "cifar10")
    variant = common.variant(variant)
    if dataset.startswith("vtab:"):
        source, (train_split, eval_split, steps, warmup, rate) = dataset, VTAB
    elif dataset in DATA:
        source, train_split, eval_split, steps, warmup, rate = DATA[dataset]
    else:
        raise ValueError(f"The data set must be one of {', '.join(DATA)} or vtab:TASK. Received: {dataset!r}")
    if (variant, dataset) == ("ViT-B/16", "cifar10"):
        rate = 0.01
    large = dataset == "imagenet2012" and variant in LARGE
    size = LARGE[variant] if large else (378 if variant == "ViT-H/14" else 384)
    dropout = {"dropout_rate": 0.1 if variant in WITH_DROPOUT else 0.0} if variant in models.VIT else {}
    augmentation = f"inception_crop({size}, cast=False)|flip_lr"
    if dataset.startswith("vtab:"):
        augmentation = vtab_augmentation(dataset.removeprefix("vtab:").partition("#")[0], size)
    return recipe.Recipe(
        total_steps=steps,
        precision="mixed_bfloat16",
        deterministic=False,
        log_every=10,
        eval_every=100 if steps < 10_000 else 1_000,
        checkpoint_every=1_000,
        model=common.published_model(variant, image_size=size, **dropout),
        data=recipe.Data(
            source=source,
            train_split=train_split,
            eval_split=eval_split,
            # `cast=False` keeps the fractions of interpolated values, as in the paper's pipeline.
            pp_train=f"decode|{augmentation}|value_range(-1, 1)",
            pp_eval=f"decode|resize({size}, cast=False)|value_range(-1, 1)",
            batch_size=512,
            eval_batch_size=512,
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
            accumulation_steps=8,
            ema_momentum=0.9999 if large else 0.0,
        ),
    )


def vtab_augmentation(task: str, size: int) -> str:
    """Return the augmentation of a VTAB task, which produces images of `size` pixels."""
    vtab.check_tasks([task])
    cropped = f"resize({size * 448 // 384}, cast=False)|random_crop({size})"
    resized = f"resize({size}, cast=False)" if task in WITHOUT_CROP else cropped
    return resized if task in WITHOUT_FLIP else f"{resized}|flip_lr"
