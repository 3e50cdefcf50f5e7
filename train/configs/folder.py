"""Fine-tuning of a published checkpoint on your own images.

    keras-vit train folder:/images
    keras-vit train folder:/images --model=ViT_S16 --weights=augreg-224 --image_size=224
    keras-vit train folder:/images --adapt=lora
    keras-vit train --config=folder:/images,ViT_S16 --workdir=runs/images

`/images` holds one folder per class, such as `/images/rose/1.jpg`. It may also hold `train/` and `test/` or `val/` with
such folders. Without them, a fifth of the images is kept for testing.

The program chooses three things, shows them in the log and writes them into config.json:

- The number of steps follows from the number of images, as in BiT-HyperRule (https://arxiv.org/abs/1912.11370).
- Images have 384 pixels on a GPU with enough memory, and 224 otherwise. `--image_size` chooses another size.
- A batch is computed in as many parts as the memory requires.

With fewer than 20,000 images, three evaluations in a row without a better accuracy end the training
(`--config.stop_after=0` does not). Where the classes have very different numbers of images, a line says so;
`--config.class_balance=1` makes all classes count alike in the loss.

Momentum and learning rate are those of the ViT paper for small data sets. `--adapt=lora`, `head` or `bias`, which train
few weights, use AdamW at a rate of 0.001. An image that cannot be read stops the run.
`--config.data.on_bad_image=skip` leaves such images out and lists them.

Cost: 500 steps of batch 128 for up to 20,000 images. The log estimates the time of the choice. Three examples:
B/16 at 384 pixels takes 2.1e16 operations, which is 36 minutes on a GPU that does 1e13 per second. B/16 at 224 pixels
takes 6.7e15, which is nine hours on two CPU cores that do 1e11 each. Ti/16 takes 4.8e14 there, 40 minutes.
Smaller machines: the choices fit the machine. `--model=ViT_Ti16` is the fastest model. `--config.total_steps=100
--config.optim.schedule.warmup_steps=20` does a fifth of the work.
"""

import re

from keras_vit import models, recipe
from keras_vit.models.registry import full_name
from keras_vit.planning import fitting

DEFAULT_FOLDER, DEFAULT_VARIANT = "images", "ViT-B/16"
fit = fitting.fit  # the program calls it with the recipe and the changes that its flags make


def get_config(
    arguments: str = "", *, data: str | None = None, model: str | None = None, adapt: str = "all"
) -> recipe.Recipe:
    """Return the recipe at 224 pixels. Folder and variant are given in one text, or each by its name."""
    folder, variant = folder_and_variant(arguments)
    folder, variant = data or folder, full_name(model) if model else variant
    name, rate = ("sgd", 0.003) if adapt.startswith(("all", "last")) else ("adamw", 0.001)
    padding = {"pool_padding": "zeros"} if variant in models.BIT else {}  # that of the published files
    return recipe.Recipe(
        total_steps=500,
        deterministic=False,
        log_every=10,
        eval_every=100,
        checkpoint_every=100,
        evaluators=("knn(neighbors=(1, 10))",),
        model=recipe.Model(variant, 224, recipe.pretrained(variant), head="reset", arguments=padding),
        data=recipe.Data(
            source=folder if ":" in folder else f"folder:{folder}",
            pp_train="decode|inception_crop(224)|flip_lr|value_range(-1, 1)",
            pp_eval="decode|resize(224)|value_range(-1, 1)",
            batch_size=128,
        ),
        adapt=adapt,
        optim=recipe.Optim(
            name,
            learning_rate=rate,
            schedule=recipe.Schedule("cosine", warmup_steps=100),
            momentum=0.9,
            weight_decay=0.0,
            clip_norm=1.0,
        ),
    )


def folder_and_variant(arguments: str) -> tuple[str, str]:
    """Split the argument into a folder, whose name may hold commas, and a variant, which may be left out."""
    folder, comma, variant = (arguments or "").rpartition(",")
    variant = variant.strip()
    if comma and (variant in ("", *models.list_models()) or re.fullmatch(r"(ViT|BiT|R\d*)[_+-][\w/+-]+", variant)):
        return folder.strip() or DEFAULT_FOLDER, full_name(variant or DEFAULT_VARIANT)
    return (arguments or "").strip() or DEFAULT_FOLDER, DEFAULT_VARIANT
