"""ViT of any size on ImageNet-1k, 300 epochs, with the augmentation levels of AugReg.

Paper: "How to train your ViT?", https://arxiv.org/abs/2106.10270

    python -m train.main --config=train/configs/vit_i1k.py --workdir=runs/b16
    python -m train.main --config=train/configs/vit_i1k.py:ViT_S16,strong1 --workdir=runs/s16

Levels: none, light1, light2, medium1, medium2, strong1, strong2. Without one, that which the paper found best for the
size: light1 for Ti/16, medium1 for S/32, medium2 for the larger.
Published: about 79 % top-1 for B/16 (a maintainer's answer, big_vision issue 7). Not run here.
Cost: 25 TPUv3-core-days for B/16 by `train.plan`.
Smaller machines: see `vit_s16_i1k`; with a batch of 1,024 take `--config.optim.learning_rate=0.001` as it is and four
times as many steps.
"""

from keras_vit import models, recipe
from keras_vit.training import presets

BEST = {"ViT-Ti/16": "light1", "ViT-S/32": "medium1"}


def get_config(arguments: str = "") -> recipe.Recipe:
    """Returns the recipe; the arguments are the variant and the level of augmentation."""
    variant, level = presets.arguments(arguments, "ViT_B16", "best")
    variant = presets.variant(variant, models.VIT)
    pp_train, mixup = presets.augmented(BEST.get(variant, "medium2") if level == "best" else level)
    return recipe.Recipe(
        total_steps=presets.steps(300, presets.IMAGENET_TRAIN, 4_096),
        precision="mixed_bfloat16",
        deterministic=False,
        loss="sigmoid",
        log_every=50,
        eval_every=1_000,
        checkpoint_every=1_000,
        evaluators=presets.IMAGENET_EVALUATORS,
        model=recipe.Model(
            variant, pooling="token", representation_size=models.VIT[variant].hidden_size, head_bias=-6.9
        ),
        data=recipe.Data(
            source=presets.IMAGENET,
            train_split="train[:99%]",
            eval_split="validation",
            pp_train=pp_train,
            pp_eval=presets.PP_EVAL,
            batch_size=4_096,
            mixup=mixup,
            shuffle_buffer=250_000,
        ),
        optim=recipe.Optim(
            "adamw",
            learning_rate=1e-3,
            schedule=recipe.Schedule("cosine", warmup_steps=10_000),
            momentum_dtype="bfloat16",
            weight_decay=0.1,  # 1e-4 a step at the peak rate
            clip_norm=1.0,
        ),
    )
