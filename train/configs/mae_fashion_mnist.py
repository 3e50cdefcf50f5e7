"""Masked autoencoder on the 60,000 training images of Fashion-MNIST, without labels.

Paper: "Masked Autoencoders Are Scalable Vision Learners", https://arxiv.org/abs/2111.06377; the sizes are our own

    apt-get install dataset-fashion-mnist
    keras-vit train --config=mae_fashion_mnist --workdir=runs/mae_fashion_mnist
    keras-vit visualize --model=runs/mae_fashion_mnist --output=runs/mae_fashion_mnist/page

The images are read from the published IDX files. `--config=mae_fashion_mnist:/my/folder` reads the files from another
folder. report.png and the page show images, their visible patches, and reconstructions.
Published: nothing of this size. The results of fine-tuning the encoder with few labels are in docs/results.md.
Cost: 9 minutes on one core of an AMD EPYC.
Smaller machines: `--steps=936` (2 epochs).
"""

from keras_vit import recipe

from . import common

BATCH = 128
STEPS_PER_EPOCH = 60_000 // BATCH


def get_config(folder: str = "") -> recipe.Recipe:
    """Return the recipe. `folder` contains the IDX files, compressed or not."""
    return recipe.Recipe(
        total_steps=15 * STEPS_PER_EPOCH,
        log_every=100,
        eval_every=3 * STEPS_PER_EPOCH,
        checkpoint_every=STEPS_PER_EPOCH,
        task="mae(decoder_hidden_size=32, decoder_num_layers=1, decoder_num_heads=2)",
        model=recipe.Model(
            variant="ViT-Ti/16",
            image_size=28,
            arguments={
                "patch_size": 4,
                "hidden_size": 64,
                "num_layers": 4,
                "num_heads": 4,
                "mlp_dim": 128,
                "class_token": True,
                "pooling": "gap",  # for fine-tuning
            },
        ),
        data=recipe.Data(
            source=common.fashion_mnist(folder),
            pp_train="pad(1)|random_crop(28)|flip_lr|value_range(-1, 1)",
            pp_eval="value_range(-1, 1)",
            batch_size=BATCH,
            eval_batch_size=500,
        ),
        optim=recipe.Optim(
            "adamw",
            learning_rate=1.5e-3,
            schedule=recipe.Schedule("cosine", warmup_steps=STEPS_PER_EPOCH),
            beta2=0.95,
            weight_decay=0.05,
            weight_decay_mask="kernel$|cls$|mask_token$",
        ),
    )
