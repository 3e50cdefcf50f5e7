"""Masked patch prediction on the 60,000 images of Fashion-MNIST, without their labels.

Paper: "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929, appendix B.1.2; the sizes are ours

    apt-get install dataset-fashion-mnist
    keras-vit train --config=masked_patch_fashion_mnist --workdir=runs/masked_patch_fashion_mnist
    keras-vit visualize --model=runs/masked_patch_fashion_mnist --output=runs/masked_patch_fashion_mnist/page

Data and model are those of `mae_fashion_mnist`; the task, its learning rate and the number of steps differ: 8 epochs
instead of 15, because all patches pass the encoder. The images are read as published (IDX files);
`--config=masked_patch_fashion_mnist:/my/folder` reads them from elsewhere.
report.png and the page show images, what the model saw of them, and reconstructions.
Published: nothing of this size. docs/results.md has models that were fine-tuned from it with few labels.
Cost: 11 minutes of one core of an AMD EPYC.
Smaller machines: `--config.total_steps=936` (2 epochs).
"""

from keras_vit import recipe

from . import mae_fashion_mnist


def get_config(folder: str = "") -> recipe.Recipe:
    """Return the recipe; `folder` holds the IDX files, compressed or not."""
    values = {
        "total_steps": 8 * mae_fashion_mnist.STEPS_PER_EPOCH,
        "eval_every": 2 * mae_fashion_mnist.STEPS_PER_EPOCH,
        "task": "masked_patch(mask_ratio=0.5, target='mean_color')",
        "optim.learning_rate": 1e-3,
        "optim.weight_decay_mask": None,
    }
    return recipe.replace(mae_fashion_mnist.get_config(folder), values)
