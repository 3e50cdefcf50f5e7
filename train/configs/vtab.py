"""One task of VTAB-1k, fine-tuned by the benchmark's own rule.

Paper: "A Large-scale Study of Representation Learning with the Visual Task Adaptation Benchmark",
https://arxiv.org/abs/1910.04867

    keras-vit train --config=vtab:ViT_B16,svhn --workdir=runs/vtab/svhn \
        --config.model.checkpoint=ViT-B_16.npz
    keras-vit vtab --model=ViT_B16 --weights=imagenet21k --workdir=runs/vtab     # all tasks and their means

Tasks: `keras_vit.evaluators.vtab.TASKS`. 1,000 steps of batch 64 on 1,000 examples, rate 0.01 divided by ten after step
300, 600 and 900, 80 steps of warm-up, 224 pixels, no augmentation. For model selection train on `train800` and evaluate
on `val200`. The ViT paper fine-tunes differently: `finetune.py:ViT_B16,vtab:svhn`.
Published: BiT-M R101x3 72.65, BiT-M R152x4 73.51 % in the mean of all tasks (with BiT-HyperRule). Not run here.
Cost: 0.004 TPUv3-core-days a task for B/16 by `keras-vit plan`.
Data: must be prepared by TensorFlow Datasets, some by hand: `--config.data.source="vtab:svhn#download=True"`.
Smaller machines: `--config.optim.accumulation_steps=8`.
"""

from keras_vit import recipe
from keras_vit.evaluators import vtab

from . import common


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe; the arguments are the variant and the task."""
    variant, task = common.arguments(arguments, "ViT_B16", "svhn")
    variant = common.variant(variant)
    vtab.check_tasks([task.partition("#")[0]])
    return recipe.Recipe(
        total_steps=1_000,
        deterministic=False,
        log_every=100,
        eval_every=0,
        checkpoint_every=1_000,
        model=common.published_model(variant),
        data=recipe.Data(
            source=f"vtab:{task}",
            train_split="train800val200",
            eval_split="test",
            pp_train="decode|resize(224, cast=False)|value_range(-1, 1)",
            pp_eval="decode|resize(224, cast=False)|value_range(-1, 1)",
            batch_size=64,
        ),
        optim=recipe.Optim(
            "sgd",
            learning_rate=0.01,
            # The published code decays after the step of the boundary, not at it.
            schedule=recipe.Schedule("steps", warmup_steps=80, boundaries=(301, 601, 901), factor=0.1),
            momentum=0.9,
            weight_decay=0.0,
            clip_norm=0.0,
        ),
    )
