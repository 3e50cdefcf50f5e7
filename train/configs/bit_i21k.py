"""BiT ResNet on ImageNet-21k, 90 epochs: BiT-M.

Paper: "Big Transfer (BiT)", https://arxiv.org/abs/1912.11370, with big_vision's settings

    keras-vit train --config=bit_i21k --workdir=runs/bit
    keras-vit train --config=bit_i21k:BiT_R101x1 --workdir=runs/bit101

Published: BiT-M R50x1, fine-tuned on ImageNet-1k, 80.68% top-1 (with the original settings). Not run here.
Cost: 20 TPUv3-core-days for R50x1 by `keras-vit plan`. Data: see `vit_i21k`.
Smaller machines: fine-tune the published BiT-M with `bit_hyperrule`.
"""

from keras_vit import models, recipe

from . import common


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The argument is the variant."""
    (variant,) = common.arguments(arguments, "BiT_R50x1")
    model = recipe.Model(common.variant(variant, models.BIT), arguments={"head_bias": -10.0})
    optim = common.bit_momentum(rate=0.03, decay=3e-5, warmup_steps=5_000)
    return common.pretraining("imagenet21k", model, optim, epochs=90, loss="sigmoid")
