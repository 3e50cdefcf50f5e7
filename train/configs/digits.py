"""The demo: a small Vision Transformer on the 1,797 handwritten digits that are part of the package.

    keras-vit train --config=digits --workdir=runs/digits
    keras-vit train folder:images --config=digits --workdir=runs/images

Paper: "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929. The sizes and settings are our own.
Mixup regularizes: with dropout instead, other seeds lost up to five points in as many steps.
Published: nothing for this model. The measured accuracy is in `benchmarks/demo.json` and docs/results.md.
Cost: about a minute of CPU time; 7.7e11 operations by `keras-vit plan`.
Smaller machines: `--steps=300`, half of the steps.
"""

from keras_vit import recipe


def get_config(*, data: str | None = None) -> recipe.Recipe:
    """Return the recipe. `data` is another source, which must contain image files."""
    read = "decode(channels=1)|resize(8, antialias=True)|" if data else ""
    return recipe.Recipe(
        total_steps=600,
        log_every=50,
        eval_every=200,
        checkpoint_every=200,
        model=recipe.Model(
            variant="ViT-Ti/16",
            image_size=8,
            arguments={
                "patch_size": 2,
                "hidden_size": 64,
                "num_layers": 3,
                "num_heads": 4,
                "mlp_dim": 128,
                "pooling": "gap",
                "position_embedding": "sincos2d",
            },
        ),
        data=recipe.Data(
            source=data or "digits",
            pp_train=f"{read}inception_crop(8, 70)|value_range(-1, 1)",
            pp_eval=f"{read}value_range(-1, 1)",
            batch_size=128,
            mixup=0.2,
        ),
        optim=recipe.Optim(
            name="adamw",
            learning_rate=4e-3,
            schedule=recipe.Schedule("cosine", warmup_steps=50),
            weight_decay=0.05,
            ema_momentum=0.99,
        ),
        label_smoothing=0.1,
    )
