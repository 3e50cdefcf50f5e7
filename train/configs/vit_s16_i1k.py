"""ViT-S/16 on ImageNet-1k: the plain ViT baseline.

Paper: "Better plain ViT baselines for ImageNet-1k", https://arxiv.org/abs/2205.01580

    keras-vit train --config=vit_s16_i1k --workdir=runs/s16
    keras-vit train --config=vit_s16_i1k:300 --workdir=runs/s16_300     # epochs: 90, 150, 300

Published: 76.5% top-1 on the validation set after 90 epochs, and 80% after 300 epochs. Not run here.
Cost: 6 to 7 hours for 90 epochs on a TPUv3-8, as published; 2.0 TPUv3-core-days by `keras-vit plan`.
Data: ImageNet, prepared by TensorFlow Datasets from the archives in the folder `manual_dir`:
`--config.data.source="tfds:imagenet2012#manual_dir='/archives'"`.
Smaller machines: `--config.optim.accumulation_steps=8` computes the same with an eighth of the memory;
`--config.model.variant=ViT-Ti/16 --config.model.arguments.representation_size=192` trains faster, but is less accurate.
"""

from keras_vit import recipe

from . import common


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The argument is the number of epochs."""
    (epochs,) = common.arguments(arguments, "90")
    if not (epochs.isdecimal() and int(epochs)):
        raise ValueError(f"The argument is a number of epochs: 90, 150 and 300 are published. Received: {epochs!r}")
    pp_train, mixup = common.augmented("light2")
    model = {"pooling": "gap", "position_embedding": "sincos2d", "representation_size": 384}
    return common.pretraining(
        "imagenet2012",
        recipe.Model("ViT-S/16", arguments=model),
        common.augreg_adam(),
        epochs=int(epochs),
        batch_size=1_024,
        pp_train=pp_train,
        mixup=mixup,
        eval_every=2_500,
    )
