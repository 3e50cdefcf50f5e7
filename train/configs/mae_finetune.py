"""Fine-tuning of a masked autoencoder's encoder on ImageNet-1k.

Paper: "Masked Autoencoders Are Scalable Vision Learners", https://arxiv.org/abs/2111.06377, table 9

    keras-vit train --config=mae_finetune --workdir=runs/b16 \
        --config.model.weights=runs/mae_b16/model.keras
    keras-vit train --config=mae_finetune:ViT_L16 --workdir=runs/l16 \
        --config.model.weights=mae_pretrain_vit_large.safetensors

The weights are the result of `mae_pretrain`, or a published checkpoint file converted to .safetensors
(docs/pretraining.md).
Settings: mean of the patches, followed by the final norm; layer-wise learning-rate decay of 0.65 (B/16) or 0.75; mixup,
CutMix and random erasing. RandAugment is this package's implementation at magnitude 9, without timm's random
magnitudes.
Published: 83.6% top-1 for B/16, 85.9% for L/16, 86.9% for H/14. Not run here.
Cost: 8.5 TPUv3-core-days for B/16 by `keras-vit plan`.
Smaller machines: `--config.optim.accumulation_steps=8` divides a step into 8 micro-batches.
"""

from keras_vit import recipe

from . import common

EXAMPLES = 1_281_167
BATCH = 1_024
# Epochs, learning rate for a batch of 256, factor per layer, stochastic depth, published file.
SETTINGS = {
    "ViT-B/16": (100, 5e-4, 0.65, 0.1, "mae_pretrain_vit_base.safetensors"),
    "ViT-L/16": (50, 1e-3, 0.75, 0.2, "mae_pretrain_vit_large.safetensors"),
    "ViT-H/14": (50, 1e-3, 0.75, 0.3, "mae_pretrain_vit_huge.safetensors"),
}


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The argument is the variant."""
    (variant,) = common.arguments(arguments, "ViT_B16")
    variant = common.variant(variant, SETTINGS)
    epochs, rate, layer_decay, drop_path, file = SETTINGS[variant]
    augmentation = "randaug(2, 9, mode='corrected')|random_erasing(0.25, value='noise')"
    return recipe.Recipe(
        total_steps=common.steps(epochs, EXAMPLES, BATCH),
        precision="mixed_bfloat16",
        deterministic=False,
        label_smoothing=0.1,
        log_every=50,
        eval_every=1_000,
        checkpoint_every=1_000,
        model=recipe.Model(
            variant,
            weights=file,
            head="reset",
            arguments={
                "pooling": "gap",
                "class_token": True,
                "norm_after_pooling": True,
                "activation": "gelu",
                "drop_path_rate": drop_path,
            },
        ),
        data=recipe.Data(
            source=common.IMAGENET,
            train_split="train",
            eval_split="validation",
            pp_train=f"decode_jpeg_and_inception_crop(224, area_min=8, method='bicubic')|flip_lr|{augmentation}"
            "|value_norm()",
            pp_eval="decode|resize_small(256, method='bicubic')|central_crop(224)|value_norm()",
            batch_size=BATCH,
            mixup=0.8,
            cutmix=1.0,
            shuffle_buffer=250_000,
        ),
        optim=recipe.Optim(
            "adamw",
            learning_rate=rate * BATCH / 256,
            schedule=recipe.Schedule("cosine", warmup_steps=common.steps(5, EXAMPLES, BATCH), end=1e-6),
            weight_decay=0.05,
            clip_norm=0.0,
            layer_decay=layer_decay,
        ),
    )
