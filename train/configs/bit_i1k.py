"""BiT ResNet on ImageNet-1k, 90 epochs.

Paper: "Big Transfer (BiT)", https://arxiv.org/abs/1912.11370, with big_vision's settings

    keras-vit train --config=bit_i1k --workdir=runs/bit
    keras-vit train --config=bit_i1k:BiT_R101x1 --workdir=runs/bit101

Published: 32 minutes on a TPUv3-128 for R50x1; the accuracy with these settings is not published. Not run here.
Cost: 1.8 TPUv3-core-days for R50x1 by `keras-vit plan`.
Smaller machines: the learning rate is proportional to the batch, and the decay per step follows it. With
`--batch_size=256`, set `--learning_rate=0.1` and sixteen times as many steps.
"""

from keras_vit import models, recipe

from . import common


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The argument is the variant."""
    (variant,) = common.arguments(arguments, "BiT_R50x1")
    model = recipe.Model(common.variant(variant, models.BIT))
    optim = common.bit_momentum(rate=0.1, decay=1e-4, warmup_steps=1_000)
    return common.pretraining("imagenet2012", model, optim, epochs=90)
