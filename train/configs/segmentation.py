"""Segmentation of your own images: predicts a class for each pixel, learned from masks.

    keras-vit train --config=segmentation --data="folder:images#masks=masks" --workdir=runs/pixels
    keras-vit train --config=segmentation --data="folder:images#masks=masks" --model=ViT_S14 --weights=dinov2 \
        --image_size=448 --adapt=head --learning_rate=1e-3
    keras-vit train "folder:images#masks=masks"

`images` is a folder of images. `masks` is a folder of PNG files with the same names, which contain a class number for
each pixel (docs/reference/sources.md). Without `--config`, this recipe is the default for data with masks. It equals
the recipe `folder` with another task and AdamW. The number of steps, the image size and the number of micro-batches are
chosen as in `folder`.

By default, all weights are trained. The second command trains a linear head on frozen features, which requires good
features, such as the features of DINOv2 or DINOv3. `--config.task="segmentation(head='upsample')"` predicts finer
borders with transposed convolutions. The score is the mean intersection over union (mIoU) over all pixels of the
evaluation split.

Cost: 500 steps of 16 images for up to 20,000 images; B/16 at 224 pixels takes 8.5e14 operations.
Smaller machines: `--model=ViT_Ti16`, and `--steps=100 --config.optim.schedule.warmup_steps=20`.
"""

from keras_vit import recipe
from keras_vit.training.planning import fitting

from . import folder

fit = fitting.fit  # the program calls `fit` with the recipe and the changes from flags


def get_config(arguments: str = "", *, data: str | None = None, model: str | None = None) -> recipe.Recipe:
    """Return the recipe at 224 pixels. The folder and the variant are given as one text, or as `data` and `model`."""
    return recipe.replace(folder.get_config(arguments, data=data, model=model), {"task": "segmentation"})
