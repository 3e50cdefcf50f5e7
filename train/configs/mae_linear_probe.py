"""Linear probe of a masked autoencoder's encoder on ImageNet-1k: the encoder is frozen.

Paper: "Masked Autoencoders Are Scalable Vision Learners", https://arxiv.org/abs/2111.06377, table 10

    keras-vit train --config=mae_linear_probe --workdir=runs/b16_probe \
        --config.model.weights=runs/mae_b16/model.keras
    keras-vit train --config=mae_linear_probe:ViT_L16 --workdir=runs/l16_probe \
        --config.model.weights=mae_pretrain_vit_large.safetensors

The weights are the result of `mae_pretrain`, or a published checkpoint file converted to .safetensors
(docs/pretraining.md).
The head is a batch norm without scale and offset on the class token, followed by a linear layer. LARS trains the head
without weight decay. The batch norm uses the statistics of the images on one device. The linear layer is initialized
with zeros instead of random weights. `keras-vit evaluate --evaluators=linear_probe` solves the same problem in one
pass, without augmentation.
Published: 68.0% top-1 for B/16, 75.8% for L/16, 76.6% for H/14, after 1,600 epochs of pre-training. Not run here.
Cost: 7.6 TPUv3-core-days for B/16 by `keras-vit plan`; a third of this if the encoder's backward pass is omitted.
Smaller machines: `--batch_size=1024 --learning_rate=0.4` and 16 times as many steps.
"""

from keras_vit import recipe

from . import common

EXAMPLES = 1_281_167
BATCH = 16_384
FILES = {
    "ViT-B/16": "mae_pretrain_vit_base.safetensors",
    "ViT-L/16": "mae_pretrain_vit_large.safetensors",
    "ViT-H/14": "mae_pretrain_vit_huge.safetensors",
}


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The argument is the variant."""
    (variant,) = common.arguments(arguments, "ViT_B16")
    variant = common.variant(variant, FILES)
    return recipe.Recipe(
        total_steps=common.steps(90, EXAMPLES, BATCH),
        precision="mixed_bfloat16",
        deterministic=False,
        adapt="head",
        log_every=50,
        eval_every=500,
        checkpoint_every=500,
        model=recipe.Model(
            variant,
            weights=FILES[variant],
            head="reset",
            arguments={"head_norm": True, "activation": "gelu"},
        ),
        data=recipe.Data(
            source=common.IMAGENET,
            train_split="train",
            eval_split="validation",
            pp_train="decode_jpeg_and_inception_crop(224, area_min=8, method='bicubic')|flip_lr|value_norm()",
            pp_eval="decode|resize_small(256, method='bicubic')|central_crop(224)|value_norm()",
            batch_size=BATCH,
            shuffle_buffer=250_000,
        ),
        optim=recipe.Optim(
            "lars",
            learning_rate=0.1 * BATCH / 256,
            schedule=recipe.Schedule("cosine", warmup_steps=common.steps(10, EXAMPLES, BATCH)),
            momentum=0.9,
            clip_norm=0.0,
        ),
    )
