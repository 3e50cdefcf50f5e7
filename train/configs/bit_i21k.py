"""BiT ResNet on ImageNet-21k, 90 epochs: BiT-M.

Paper: "Big Transfer (BiT)", https://arxiv.org/abs/1912.11370, in big_vision's settings

    python -m train.main --config=train/configs/bit_i21k.py --workdir=runs/bit
    python -m train.main --config=train/configs/bit_i21k.py:BiT_R101x1 --workdir=runs/bit101

Published: BiT-M R50x1, fine-tuned on ImageNet-1k, 80.68 % top-1 (with the original settings). Not run here.
Cost: 20 TPUv3-core-days for R50x1 by `train.plan`. Data: see `vit_i21k`.
Smaller machines: fine-tune the published BiT-M with `bit_hyperrule`.
"""

from keras_vit import models, recipe
from keras_vit.training import presets

BATCH = 4_096


def get_config(arguments: str = "") -> recipe.Recipe:
    """Returns the recipe; the argument is the variant."""
    (variant,) = presets.arguments(arguments, "BiT_R50x1")
    return recipe.Recipe(
        total_steps=presets.steps(90, presets.IMAGENET_21K_TRAIN, BATCH),
        precision="mixed_bfloat16",
        deterministic=False,
        loss="sigmoid",
        log_every=50,
        eval_every=1_000,
        checkpoint_every=1_000,
        evaluators=presets.IMAGENET_21K_EVALUATORS + presets.FEWSHOT_EVALUATORS,
        model=recipe.Model(presets.variant(variant, models.BIT), head_bias=-10.0),
        data=recipe.Data(
            source=presets.IMAGENET_21K,
            train_split="full[51200:]",
            eval_split="full[:25600]",
            pp_train=presets.PP_TRAIN.format(""),
            pp_eval=presets.PP_EVAL,
            batch_size=BATCH,
            shuffle_buffer=250_000,
        ),
        optim=recipe.Optim(
            "sgd",
            learning_rate=0.03 / 256 * BATCH,
            schedule=recipe.Schedule("cosine", warmup_steps=5_000),
            momentum=0.9,
            momentum_dtype="bfloat16",
            weight_decay=3e-5 / 0.03,  # of the rate; 3e-5 / 256 a step and example at the peak
            clip_norm=1.0,
        ),
    )
