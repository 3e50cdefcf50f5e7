"""BiT ResNet on ImageNet-1k, 90 epochs.

Paper: "Big Transfer (BiT)", https://arxiv.org/abs/1912.11370, in big_vision's settings

    python -m train.main --config=train/configs/bit_i1k.py --workdir=runs/bit
    python -m train.main --config=train/configs/bit_i1k.py:BiT_R101x1 --workdir=runs/bit101

Published: 32 minutes on a TPUv3-128 for R50x1; no accuracy is published with the settings. Not run here.
Cost: 1.8 TPUv3-core-days for R50x1 by `train.plan`.
Smaller machines: rate and decay follow the batch; with `--config.data.batch_size=256` give
`--config.optim.learning_rate=0.1` and sixteen times as many steps.
"""

from keras_vit import models, recipe
from keras_vit.training import presets

BATCH = 4_096


def get_config(arguments: str = "") -> recipe.Recipe:
    """Returns the recipe; the argument is the variant."""
    (variant,) = presets.arguments(arguments, "BiT_R50x1")
    return recipe.Recipe(
        total_steps=presets.steps(90, presets.IMAGENET_TRAIN, BATCH),
        precision="mixed_bfloat16",
        deterministic=False,
        log_every=50,
        eval_every=1_000,
        checkpoint_every=1_000,
        evaluators=presets.IMAGENET_EVALUATORS,
        model=recipe.Model(presets.variant(variant, models.BIT)),
        data=recipe.Data(
            source=presets.IMAGENET,
            train_split="train[:99%]",
            eval_split="validation",
            pp_train=presets.PP_TRAIN.format(""),
            pp_eval=presets.PP_EVAL,
            batch_size=BATCH,
            shuffle_buffer=250_000,
        ),
        optim=recipe.Optim(
            "sgd",
            learning_rate=0.1 / 256 * BATCH,
            schedule=recipe.Schedule("cosine", warmup_steps=1_000),
            momentum=0.9,
            momentum_dtype="bfloat16",
            weight_decay=1e-4 / 0.1,  # of the rate; 1e-4 / 256 a step and example at the peak
            clip_norm=1.0,
        ),
    )
