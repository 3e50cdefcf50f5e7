"""A small ViT on CIFAR-10 from scratch, on one GPU or a patient CPU.

Papers: the model is ViT with patches of 4 pixels; the settings follow "How to train your ViT?",
https://arxiv.org/abs/2106.10270, with mixup and CutMix as in DeiT, https://arxiv.org/abs/2012.12877

    python -m train.main --config=train/configs/cifar10_scratch.py --workdir=runs/cifar10

Published: nothing for these settings. Small ViTs from scratch are usually reported between 90 and 95 %. Not run here.
Cost: 0.016 TPUv3-core-days by `train.plan`; on a CPU days.
Smaller machines: `--config.total_steps=4883 --config.model.arguments.num_layers=6` takes a quarter of the 19,531 steps
and six of the eight layers. For two cores, `fashion_mnist` or `digits` suits better.
"""

from keras_vit import recipe

from . import common


def get_config() -> recipe.Recipe:
    """Return the recipe."""
    return recipe.Recipe(
        total_steps=common.steps(200, 50_000, 512),
        precision="mixed_bfloat16",
        deterministic=False,
        log_every=50,
        eval_every=1_000,
        checkpoint_every=1_000,
        label_smoothing=0.1,
        evaluators=("knn", "fewshot(shots=(10,))"),
        model=recipe.Model(
            "ViT-Ti/16",
            image_size=32,
            arguments={
                "patch_size": 4,
                "hidden_size": 256,
                "num_layers": 8,
                "num_heads": 4,
                "mlp_dim": 1_024,
                "pooling": "gap",
                "drop_path_rate": 0.1,
            },
        ),
        data=recipe.Data(
            source="tfds:cifar10",
            train_split="train",
            eval_split="test",
            pp_train="decode|pad(4)|random_crop(32)|flip_lr|randaug(2, 9, mode='corrected')|value_range(-1, 1)",
            pp_eval="decode|resize(32)|value_range(-1, 1)",
            batch_size=512,
            mixup=0.2,
            cutmix=1.0,
        ),
        optim=recipe.Optim(
            "adamw",
            learning_rate=1e-3,
            schedule=recipe.Schedule("cosine", warmup_steps=1_000),
            weight_decay=0.05,
            clip_norm=1.0,
            ema=0.999,
        ),
    )
