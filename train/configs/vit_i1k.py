"""ViT of any size on ImageNet-1k for 300 epochs, with the augmentation levels of AugReg.

Paper: "How to train your ViT?", https://arxiv.org/abs/2106.10270

    keras-vit train --config=vit_i1k --workdir=runs/b16
    keras-vit train --config=vit_i1k:ViT_S16,strong1 --workdir=runs/s16

Levels: none, light1, light2, medium1, medium2, strong1, strong2. The default is the level that the paper found best for
the size: light1 for Ti/16, medium1 for S/32, and medium2 for larger models.
Published: about 79% top-1 for B/16 (according to a maintainer in big_vision issue 7). Not run here.
Cost: 25 TPUv3-core-days for B/16 by `keras-vit plan`.
Smaller machines: see `vit_s16_i1k`. With a batch of 1,024, keep the learning rate of 0.001 and take four times as many
steps.
"""

from keras_vit import models, recipe

from . import common

BEST = {"ViT-Ti/16": "light1", "ViT-S/32": "medium1"}


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The arguments are the variant and the level of augmentation."""
    variant, level = common.arguments(arguments, "ViT_B16", "best")
    variant = common.variant(variant, models.VIT)
    pp_train, mixup = common.augmented(BEST.get(variant, "medium2") if level == "best" else level)
    head = {"pooling": "token", "representation_size": models.VIT[variant].hidden_size, "head_bias": -6.9}
    return common.pretraining(
        "imagenet2012",
        recipe.Model(variant, arguments=head),
        common.augreg_adam(),
        epochs=300,
        pp_train=pp_train,
        mixup=mixup,
        loss="sigmoid",
    )
