"""Fashion-MNIST from scratch with a small hybrid: a ResNet stem and stage, followed by a Vision Transformer.

Paper: "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929, section 3.1 on hybrids; the sizes are our own

    apt-get install dataset-fashion-mnist
    keras-vit train --config=fashion_mnist --workdir=runs/fashion_mnist

The images are read from the published IDX files. `--config=fashion_mnist:/my/folder` reads the files from another
folder.
Published: nothing of this size. The measured accuracy is in docs/results.md, next to other models.
Cost: see docs/results.md; 8.8e13 operations by `keras-vit plan`.
Smaller machines: `--steps=4680` (10 epochs).
"""

from keras_vit import recipe

from . import common

STEPS_PER_EPOCH = 60_000 // 128


def get_config(folder: str = "") -> recipe.Recipe:
    """Return the recipe. `folder` contains the four IDX files, compressed or not."""
    return recipe.Recipe(
        total_steps=20 * STEPS_PER_EPOCH,
        log_every=100,
        eval_every=4 * STEPS_PER_EPOCH,
        checkpoint_every=STEPS_PER_EPOCH,
        model=recipe.Model(
            variant="R+ViT-Ti/16",
            image_size=28,
            arguments={
                "patch_size": 1,
                "resnet_blocks": (2,),
                "hidden_size": 64,
                "num_layers": 2,
                "num_heads": 4,
                "mlp_dim": 128,
                "pooling": "gap",
                "position_embedding": "sincos2d",
                "dropout_rate": 0.05,
            },
        ),
        data=recipe.Data(
            source=common.fashion_mnist(folder),
            pp_train="pad(1)|random_crop(28)|flip_lr|value_range(-1, 1)",
            pp_eval="value_range(-1, 1)",
            batch_size=128,
            eval_batch_size=500,
        ),
        optim=recipe.Optim(
            name="adamw",
            learning_rate=5e-3,
            schedule=recipe.Schedule("cosine", warmup_steps=STEPS_PER_EPOCH // 2),
            weight_decay=0.1,
            ema_momentum=0.999,
        ),
        label_smoothing=0.1,
    )
