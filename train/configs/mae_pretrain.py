"""Masked autoencoder on ImageNet-1k without labels, for 800 or 1,600 epochs.

Paper: "Masked Autoencoders Are Scalable Vision Learners", https://arxiv.org/abs/2111.06377, table 8

    keras-vit train --config=mae_pretrain --workdir=runs/mae_b16
    keras-vit train --config=mae_pretrain:ViT_L16,1600 --workdir=runs/mae_l16
    keras-vit plan --config=mae_pretrain

The encoder sees 25% of the patches. The decoder has 8 blocks of width 512, and predicts the masked patches, each
normalized to mean 0 and variance 1. `mae_finetune` continues from the result:
`--config.model.weights=runs/mae_b16/model.keras`.
Published, after 1,600 epochs and fine-tuning: 83.6% top-1 for B/16, 85.9% for L/16, 86.9% for H/14. Not run here.
Cost: 38 TPUv3-core-days for 800 epochs of B/16 by `keras-vit plan`.
According to the TPU's compiler, B/16 with a batch of 4,096 images needs 21.88 GiB per chip on 8 chips of v5e and does
not fit. With `--config.optim.accumulation_steps=2`, it needs 15.33 GiB per chip and fits.
Smaller machines: `--batch_size=1024 --learning_rate=0.0006` and four times as many steps;
`--config.optim.accumulation_steps=8` divides a step into 8 micro-batches.
"""

from keras_vit import models, recipe

from . import common

EXAMPLES = 1_281_167
BATCH = 4_096


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The arguments are the variant and the number of epochs."""
    variant, epochs = common.arguments(arguments, "ViT_B16", "800")
    variant = common.variant(variant, models.VIT)
    return recipe.Recipe(
        total_steps=common.steps(float(epochs), EXAMPLES, BATCH),
        precision="mixed_bfloat16",
        deterministic=False,
        log_every=50,
        eval_every=5_000,
        checkpoint_every=1_000,
        task="mae(mask_ratio=0.75, normalize_pixels=True)",
        model=recipe.Model(variant),
        data=recipe.Data(
            source=common.IMAGENET,
            train_split="train",
            eval_split="validation",
            pp_train="decode_jpeg_and_inception_crop(224, area_min=20, method='bicubic')|flip_lr|value_norm()",
            pp_eval="decode|resize_small(256, method='bicubic')|central_crop(224)|value_norm()",
            batch_size=BATCH,
            shuffle_buffer=250_000,
        ),
        optim=recipe.Optim(
            "adamw",
            learning_rate=1.5e-4 * BATCH / 256,
            schedule=recipe.Schedule("cosine", warmup_steps=common.steps(40, EXAMPLES, BATCH)),
            beta1=0.9,
            beta2=0.95,
            weight_decay=0.05,
            weight_decay_mask="kernel$|cls$|mask_token$",
            clip_norm=0.0,
        ),
    )
