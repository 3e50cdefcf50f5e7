"""Fine-tuning on one task of VTAB-1k, with the settings of the benchmark.

Paper: "A Large-scale Study of Representation Learning with the Visual Task Adaptation Benchmark",
https://arxiv.org/abs/1910.04867

    keras-vit train --config=vtab:ViT_B16,svhn --workdir=runs/vtab/svhn \
        --config.model.weights=ViT-B_16.npz
    keras-vit vtab --model=ViT_B16 --weights=imagenet21k --workdir=runs/vtab     # all tasks and their means

Tasks: see `keras_vit.evaluators.vtab.TASKS`.
Settings: 1,000 steps with batches of 64 from 1,000 examples, 224 pixels, no augmentation. After 80 warm-up steps the
learning rate is 0.01; it is divided by ten after steps 300, 600 and 900. For model selection, train on `train800` and
evaluate on `val200`. The ViT paper uses other settings: `finetune.py:ViT_B16,vtab:svhn`.
Published, mean of all tasks with BiT-HyperRule: BiT-M R101x3 72.65%, BiT-M R152x4 73.51%. Not run here.
Cost: 0.004 TPUv3-core-days per task for B/16 by `keras-vit plan`.
Data: must be prepared by TensorFlow Datasets, with `--config.data.source="vtab:svhn#download=True"`. Some data sets
also require a manual download.
Smaller machines: `--config.optim.accumulation_steps=8`.
"""

from keras_vit import recipe
from keras_vit.evaluators import vtab

from . import common


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The arguments are the variant and the task."""
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
            # The published code decays one step after the boundary.
            schedule=recipe.Schedule("steps", warmup_steps=80, boundaries=(301, 601, 901), factor=0.1),
            momentum=0.9,
            weight_decay=0.0,
            clip_norm=0.0,
        ),
    )
