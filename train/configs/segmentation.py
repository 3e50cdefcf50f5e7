"""Segmentation of your own images: a class for each pixel, learned from masks.

    keras-vit train --config=segmentation --data="folder:images#masks=masks" --workdir=runs/pixels
    keras-vit train --config=segmentation --data="folder:images#masks=masks" --model=ViT_S14 --weights=dinov2 \
        --image_size=448 --adapt=head --config.optim.learning_rate=1e-3
    keras-vit train "folder:images#masks=masks"

`images` and `masks` are folders of images and of PNG files with the same names, which contain the number of a class for
each pixel (docs/data.md). Data with masks choose this recipe without `--config`, too: it is the recipe `folder` with
another task and AdamW. The number of steps, the size of the images and the parts of a batch are chosen as there.

All weights are trained. The second command trains a linear head on frozen features, which needs good ones: those of
DINOv2 or DINOv3. `--config.task="segmentation(head='upsample')"` draws finer borders by transposed convolutions. The
score is the mean intersection over union, mIoU, of all pixels of the evaluation split together.

Cost: 500 steps of 16 images for up to 20,000 images; B/16 at 224 pixels takes 8.5e14 operations.
Smaller machines: `--model=ViT_Ti16`, and `--config.total_steps=100 --config.optim.schedule.warmup_steps=20`.
"""

from keras_vit import recipe
from keras_vit.planning import fitting

from . import folder

fit = fitting.fit  # the program calls it with the recipe and the changes that its flags make


def get_config(arguments: str = "", *, data: str | None = None, model: str | None = None) -> recipe.Recipe:
    """Return the recipe at 224 pixels. Folder and variant are given in one text, or each by its name."""
    return recipe.replace(folder.get_config(arguments, data=data, model=model), {"task": "segmentation"})
