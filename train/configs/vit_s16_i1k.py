"""ViT-S/16 on ImageNet-1k: the plain baseline.

Paper: "Better plain ViT baselines for ImageNet-1k", https://arxiv.org/abs/2205.01580

    python -m train.main --config=train/configs/vit_s16_i1k.py --workdir=runs/s16
    python -m train.main --config=train/configs/vit_s16_i1k.py:300 --workdir=runs/s16_300     # epochs: 90, 150, 300

Published: 76.5 % top-1 after 90 epochs and 80 % after 300, on the validation set. Not run here.
Cost: 6 to 7 hours for 90 epochs on a TPUv3-8, as published; 2.0 TPUv3-core-days by `train.plan`.
Data: ImageNet, prepared by TensorFlow Datasets; it asks for the archives, in the folder that
`--config.data.source="tfds:imagenet2012#manual_dir='/archives'"` names.
Smaller machines: `--config.optim.accumulation_steps=8` computes the same with an eighth of the memory;
`--config.model.variant=ViT-Ti/16 --config.model.representation_size=192` learns faster and ends lower.
"""

from keras_vit import recipe
from keras_vit.training import presets


def get_config(arguments: str = "") -> recipe.Recipe:
    """Returns the recipe; the argument is the number of epochs."""
    (epochs,) = presets.arguments(arguments, "90")
    if not (epochs.isdecimal() and int(epochs)):
        raise ValueError(f"The argument is a number of epochs: 90, 150 and 300 are published. Received: {epochs!r}")
    randaug, mixup = "randaug(2, 10)", 0.2
    return recipe.Recipe(
        total_steps=presets.steps(int(epochs), presets.IMAGENET_TRAIN, 1_024),
        precision="mixed_bfloat16",
        deterministic=False,
        log_every=50,
        eval_every=2_500,
        checkpoint_every=1_000,
        evaluators=presets.IMAGENET_EVALUATORS,
        model=recipe.Model("ViT-S/16", pooling="gap", position_embedding="sincos2d", representation_size=384),
        data=recipe.Data(
            source=presets.IMAGENET,
            train_split="train[:99%]",
            eval_split="validation",
            pp_train=presets.PP_TRAIN.format(f"|{randaug}"),
            pp_eval=presets.PP_EVAL,
            batch_size=1_024,
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
