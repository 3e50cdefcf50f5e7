"""Masked patch prediction on the 60,000 training images of Fashion-MNIST, without labels.

Paper: "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929, appendix B.1.2; the sizes are our own

    apt-get install dataset-fashion-mnist
    keras-vit train --config=masked_patch_fashion_mnist --workdir=runs/masked_patch_fashion_mnist
    keras-vit visualize --model=runs/masked_patch_fashion_mnist --output=runs/masked_patch_fashion_mnist/page

The data and the model are the same as in `mae_fashion_mnist`. The task and the learning rate differ, and training takes
8 epochs instead of 15, because the encoder processes all patches.
The images are read from the published IDX files. `--config=masked_patch_fashion_mnist:/my/folder` reads the files from
another folder. report.png and the page show images, the model's corrupted inputs, and reconstructions.
Published: nothing of this size. The results of fine-tuning the encoder with few labels are in docs/results.md.
Cost: 11 minutes on one core of an AMD EPYC.
Smaller machines: `--steps=936` (2 epochs).
"""

from keras_vit import recipe

from . import mae_fashion_mnist


def get_config(folder: str = "") -> recipe.Recipe:
    """Return the recipe. `folder` contains the IDX files, compressed or not."""
    values = {
        "total_steps": 8 * mae_fashion_mnist.STEPS_PER_EPOCH,
        "eval_every": 2 * mae_fashion_mnist.STEPS_PER_EPOCH,
        "task": "masked_patch(mask_ratio=0.5, target='mean_color')",
        "optim.learning_rate": 1e-3,
        "optim.weight_decay_mask": None,
    }
    return recipe.replace(mae_fashion_mnist.get_config(folder), values)
