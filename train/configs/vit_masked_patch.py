"""Masked patch prediction, the self-supervised pre-training of the ViT paper.

Paper: "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929, section 4.6 and appendix B.1.2

    keras-vit train --config=vit_masked_patch:ViT_B16,imagenet2012 --workdir=runs/masked
    keras-vit train --config=vit_masked_patch:ViT_B16,imagenet2012 --workdir=runs/masked_15 \
        --config.task="masked_patch(mask_ratio=0.15)"
    keras-vit plan --config=vit_masked_patch

Half of the patch embeddings are corrupted, and the model predicts the 3-bit mean color of these patches. The paper also
tried corrupting 15%, and the targets `"masked_patch(target='colors_4x4')"` and `"masked_patch(target='pixels')"`. The
dropout and weight decay are the same as in the paper's supervised training on JFT; the paper does not mention gradient
clipping. `finetune` continues from the result: `--config.model.weights=runs/masked/model.keras`. Data sets: jft (not
public), imagenet21k, imagenet2012.
Published: 79.9% top-1 on ImageNet for B/16, 2% more than from scratch; 100,000 steps achieve most of this gain. Not run
here.
Cost: 272 TPUv3-core-days for B/16 by `keras-vit plan`.
Smaller machines: `--steps=100000`; `--config.optim.accumulation_steps=8` divides a step into 8
micro-batches.
"""

from keras_vit import models, recipe

from . import common

DATA = {
    "jft": ("tfrecord:jft", "train", "test"),
    "imagenet21k": (common.IMAGENET_21K, "full[51200:]", "full[:25600]"),
    "imagenet2012": (common.IMAGENET, "train[:99%]", "validation"),
}


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The arguments are the variant and the data set."""
    variant, dataset = common.arguments(arguments, "ViT_B16", "jft")
    variant = common.variant(variant, models.VIT)
    if dataset not in DATA:
        raise ValueError(f"The data set must be one of {', '.join(DATA)}. Received: {dataset!r}")
    source, train_split, eval_split = DATA[dataset]
    return recipe.Recipe(
        total_steps=1_000_000,
        precision="mixed_bfloat16",
        deterministic=False,
        log_every=50,
        eval_every=10_000,
        checkpoint_every=1_000,
        task="masked_patch(mask_ratio=0.5, target='mean_color')",
        model=recipe.Model(variant),
        data=recipe.Data(
            source=source,
            train_split=train_split,
            eval_split=eval_split,
            pp_train=common.PP_TRAIN.format(""),
            pp_eval=common.PP_EVAL,
            batch_size=4_096,
            shuffle_buffer=250_000,
        ),
        optim=recipe.Optim(
            "adamw",
            learning_rate=2e-4,
            schedule=recipe.Schedule("cosine", warmup_steps=10_000),
            weight_decay=0.1,
            clip_norm=0.0,
        ),
    )
