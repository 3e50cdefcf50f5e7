"""The original pre-training of ViTs, hybrids and ResNets on ImageNet-21k, ImageNet-1k or JFT-300M.

Paper: "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929, section 4.1 and table 3

    keras-vit train --config=vit_paper --workdir=runs/b16
    keras-vit train --config=vit_paper:ViT_L16,imagenet2012 --workdir=runs/l16
    keras-vit plan --config=vit_paper:ViT_H14,jft

All data sets: Adam with beta2 0.999, batches of 4,096, 10,000 warm-up steps.
imagenet21k: 90 epochs, linear decay of the learning rate from 1e-3 to 1e-5, weight decay 0.03, dropout 0.1.
imagenet2012: 300 epochs, cosine decay of the learning rate from 3e-3, weight decay 0.3, dropout 0.1, clipping at 1.
jft: 7 epochs (14 for H/14), a peak learning rate of 2e-4 to 1e-3 (depending on the model) with linear decay to 1e-5,
weight decay 0.1, no dropout.
The final learning rate of 1e-5, the layer before the head and the head's bias of -10 are not in the paper, but in the
authors' replies (vision_transformer issue 2). The softmax loss on ImageNet-1k is an assumption.
Published, top-1 on ImageNet-1k: L/16 85.30% after ImageNet-21k and fine-tuning at 512 pixels, H/14 88.55% after
JFT-300M and fine-tuning at 518 pixels. Not run here.
Cost, as published: 230 TPUv3-core-days for L/16 on ImageNet-21k, 680 for L/16 and 2,500 for H/14 on JFT-300M.
`keras-vit plan` prints its own estimate next to the published cost. JFT-300M is not public: use its recipe for
planning, or with other data (`--config.data.source=tfrecord:...`).
Smaller machines: see `vit_i21k`.
"""

from typing import Any

from keras_vit import models, recipe

from . import common

# Learning rates on JFT. Other models use 8e-4, the rate of B/16, B/32, R50+B/16 and R101x1 in table 3.
JFT = {
    "ViT-L/32": 6e-4,
    "ViT-L/16": 4e-4,
    "ViT-H/14": 3e-4,
    "R50+ViT-L/32": 2e-4,
    "BiT-R50x1": 1e-3,
    "BiT-R152x2": 6e-4,
}


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The arguments are the variant and the data set."""
    variant, dataset = common.arguments(arguments, "ViT_B16", "imagenet21k")
    variant = common.variant(variant)
    if dataset not in ("imagenet21k", "imagenet2012", "jft"):
        raise ValueError(f"The data set must be imagenet21k, imagenet2012 or jft. Received: {dataset!r}")
    imagenet = dataset == "imagenet2012"
    rate = {"imagenet21k": 1e-3, "imagenet2012": 3e-3, "jft": JFT.get(variant, 8e-4)}[dataset]
    model: dict[str, Any] = {"head_bias": 0.0 if imagenet else -10.0}
    if variant in models.VIT:
        hidden_size = models.VIT[variant].hidden_size
        model |= {
            "pooling": "token",
            "representation_size": hidden_size,
            "dropout_rate": 0.0 if dataset == "jft" else 0.1,
        }
    config = common.pretraining(
        "imagenet2012" if imagenet else "imagenet21k",
        recipe.Model(variant, arguments=model),
        recipe.Optim(
            "adamw",
            learning_rate=rate,
            schedule=recipe.Schedule(
                "cosine" if imagenet else "linear", warmup_steps=10_000, end=0.0 if imagenet else 1e-5
            ),
            beta1=0.9,
            beta2=0.999,
            weight_decay={"imagenet21k": 0.03, "imagenet2012": 0.3, "jft": 0.1}[dataset],
            clip_norm=1.0 if imagenet else 0.0,
        ),
        epochs=300 if imagenet else 90,
        loss="softmax" if imagenet else "sigmoid",
        eval_every=5_000,
        evaluators=common.IMAGENET_EVALUATORS if imagenet else common.FEWSHOT_EVALUATORS,
    )
    if dataset == "jft":
        epochs = 14 if variant == "ViT-H/14" else 7
        config.total_steps = common.steps(epochs, 303_000_000, config.data.batch_size)
        config.data.source, config.data.train_split, config.data.eval_split = "tfrecord:jft", "train", "test"
    return config
