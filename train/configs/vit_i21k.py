"""ViT of any size on ImageNet-21k for 300 epochs, as in the pre-training of the AugReg checkpoints.

Paper: "How to train your ViT?", https://arxiv.org/abs/2106.10270

    keras-vit train --config=vit_i21k --workdir=runs/b16_21k
    keras-vit train --config=vit_i21k:ViT_L16,medium2 --workdir=runs/l16_21k

Levels: see `vit_i1k`. The default is the published choice for the size: none for Ti/16 and S/32, light1 for S/16,
light2 for B/32 and B/16, medium2 for L/16.
Published, top-1 after fine-tuning on ImageNet-1k at 384 pixels: Ti/16 78.22%, S/32 79.58%, S/16 83.73%, B/32 83.59%,
B/16 85.49%, L/16 85.59%. Not run here.
Cost: 280 TPUv3-core-days for B/16 by `keras-vit plan`.
Data: ImageNet-21k (fall 2011, 14.2 million images) as `tfds:imagenet21k`. TensorFlow Datasets does not publish
ImageNet-21k: prepare the data under this name, or use your own files with `--config.data.source=tfrecord:...`.
Smaller machines: this recipe has no small version. Fine-tune the published weights with `finetune` or `folder`.
"""

from keras_vit import models, recipe

from . import common

BEST = {
    "ViT-Ti/16": "none",
    "ViT-S/32": "none",
    "ViT-S/16": "light1",
    "ViT-B/32": "light2",
    "ViT-B/16": "light2",
    "ViT-L/16": "medium2",
}


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The arguments are the variant and the level of augmentation."""
    variant, level = common.arguments(arguments, "ViT_B16", "best")
    variant = common.variant(variant, models.VIT)
    pp_train, mixup = common.augmented(BEST.get(variant, "medium2") if level == "best" else level)
    head = {"pooling": "gap", "position_embedding": "learned", "head_bias": -10.0}
    return common.pretraining(
        "imagenet21k",
        recipe.Model(variant, arguments=head),
        common.augreg_adam(),
        epochs=300,
        pp_train=pp_train,
        mixup=mixup,
        loss="sigmoid",
    )
