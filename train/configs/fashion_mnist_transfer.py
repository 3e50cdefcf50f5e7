"""Transfer between parts of Fashion-MNIST: pre-train on eight classes, then fine-tune on few images of the other two.

Paper: "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929, section 3.2: fine-tuning uses twice the
resolution, and the position embeddings are resized to the new grid

    python -m benchmarks.results --only=transfer --workdir=runs/results        # prepares the data and does all of it
    keras-vit train --config=fashion_mnist_transfer:pretrain --workdir=runs/pretrain
    keras-vit train --config=fashion_mnist_transfer:finetune --workdir=runs/finetune \
        --config.model.weights=runs/pretrain/model.keras
    keras-vit train --config=fashion_mnist_transfer:scratch --workdir=runs/scratch

The two held-out classes are T-shirts and shirts, the pair that is hardest to distinguish. The model is trained on 500
images of each held-out class for 100 steps, with pre-training (`finetune`) and without it (`scratch`). `scratch` uses
the learning rate of `pretrain`; with `--learning_rate=0.0005` it uses the learning rate of `finetune`. The
folder with the two files that `benchmarks.results` prepares can follow: `:scratch,/my/folder`.
Published: nothing of this size. The measured results are in docs/results.md.
Cost: see docs/results.md.
Smaller machines: `--steps=500` for pre-training.
"""

import os

from keras_vit import recipe

from . import common

HELD_BACK = (0, 6)  # T-shirt/top, Shirt


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The arguments are "pretrain", "finetune" or "scratch", and the folder of the two files."""
    stage, folder = common.arguments(arguments, "pretrain", "runs/results/data")
    if stage not in ("pretrain", "finetune", "scratch"):
        raise ValueError(f'The stage must be "pretrain", "finetune" or "scratch". Received: {stage!r}')
    first = stage == "pretrain"
    size = 28 if first else 56
    steps = 750 if first else 100
    resized = "" if first else f"resize({size})|"
    return recipe.Recipe(
        total_steps=steps,
        log_every=50,
        eval_every=steps // 3,
        checkpoint_every=steps // 3,
        model=recipe.Model(
            "ViT-Ti/16",
            image_size=size,
            head="reset",
            arguments={
                "patch_size": 4,
                "hidden_size": 64,
                "num_layers": 6,
                "num_heads": 4,
                "mlp_dim": 128,
                "pooling": "gap",
                "position_embedding": "learned",
                "dropout_rate": 0.05,
            },
        ),
        data=recipe.Data(
            source=f"npz:{os.path.join(folder, 'eight.npz' if first else 'two.npz')}",
            pp_train=f"pad(1)|random_crop(28)|flip_lr|{resized}value_range(-1, 1)",
            pp_eval=f"{resized}value_range(-1, 1)",
            batch_size=128 if first else 64,
            eval_batch_size=200,
        ),
        optim=recipe.Optim(
            "adamw",
            learning_rate=5e-4 if stage == "finetune" else 2e-3,
            schedule=recipe.Schedule("cosine", warmup_steps=steps // 20),
            weight_decay=0.1,
            ema_momentum=0.99 if first else 0.0,
        ),
        label_smoothing=0.1,
    )
