"""Fashion-MNIST from scratch with a plain ViT or a BiT ResNet, at the same cost as the hybrid in `fashion_mnist`.

Papers: "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929, and "Big Transfer (BiT)",
https://arxiv.org/abs/1912.11370; the sizes are our own

    apt-get install dataset-fashion-mnist
    keras-vit train --config=fashion_mnist_models:vit --workdir=runs/fashion_vit
    keras-vit train --config=fashion_mnist_models:bit --workdir=runs/fashion_bit

Like the hybrid, both models take 11 to 12 million multiply-adds per image and train for 20 epochs. A folder with the
four IDX files can follow: `:vit,/my/folder`.
Published: nothing of this size. The results of `bit` are in docs/results.md; `vit` was not measured.
Cost: see docs/results.md.
Smaller machines: `--steps=1404` (3 epochs).
"""

from keras_vit import recipe

from . import common

BATCH = 128
EPOCH = 60_000 // BATCH


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The arguments are "vit" or "bit", and the folder of the files."""
    kind, folder = common.arguments(arguments, "vit", "")
    if kind not in ("vit", "bit"):
        raise ValueError(f'The model must be "vit" or "bit". Received: {kind!r}')
    return recipe.Recipe(
        total_steps=20 * EPOCH,
        log_every=100,
        eval_every=4 * EPOCH,
        checkpoint_every=EPOCH,
        model=vit() if kind == "vit" else recipe.Model("BiT-R50x1", image_size=28, arguments={"block_sizes": (1, 1)}),
        data=recipe.Data(
            source=common.fashion_mnist(folder),
            pp_train="pad(1)|random_crop(28)|flip_lr|value_range(-1, 1)",
            pp_eval="value_range(-1, 1)",
            batch_size=BATCH,
            eval_batch_size=500,
        ),
        optim=recipe.Optim(
            "adamw",
            learning_rate=2e-3 if kind == "vit" else 5e-3,
            schedule=recipe.Schedule("cosine", warmup_steps=EPOCH // 2),
            weight_decay=0.1,
            ema_momentum=0.999,
        ),
        label_smoothing=0.1,
    )


def vit() -> recipe.Model:
    """Return a ViT with 7 x 7 patches."""
    return recipe.Model(
        "ViT-Ti/16",
        image_size=28,
        arguments={
            "patch_size": 4,
            "hidden_size": 64,
            "num_layers": 6,
            "num_heads": 4,
            "mlp_dim": 128,
            "pooling": "gap",
            "position_embedding": "sincos2d",
            "dropout_rate": 0.05,
        },
    )
