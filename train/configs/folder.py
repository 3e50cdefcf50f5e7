"""Training on your own images, from published weights if there are any.

    keras-vit train folder:/images
    keras-vit train folder:/images --model=hf:facebook/dinov2-base --time=20m
    keras-vit train folder:/images --model=ViT_S16 --weights=augreg-224 --image_size=224 --adapt=all
    keras-vit train folder:/images --weights=none
    keras-vit train --config=folder:/images,ViT_S16 --workdir=runs/images

`/images` holds one folder per class, such as `/images/rose/1.jpg`. It may also hold `train/` and `test/` or `val/` with
such folders. Without them, a fifth of the images is kept for testing.

The model is DINOv2's ViT-S/14 unless `--model` names another. Where its weights cannot be downloaded, a small hybrid
learns from scratch, as with `--weights=none`.

Image size, batch, steps, optimizer, rate, the weights that are trained and augmentation follow from the images, the
model and the machine. docs/how_to/own_images.md has the rules and the measurements behind them. The program logs the
choices in six lines and writes them into config.json. Flags take precedence: `--time=20m` plans the steps for twenty
minutes, and `--image_size`, `--adapt` and `--config.FIELD=VALUE` set single choices.

With fewer than 20,000 images, three evaluations in a row without a better accuracy end the training
(`--config.stop_after=0` does not). Where the classes have very different numbers of images, a line says so;
`--config.class_balance=1` makes all classes count alike in the loss. An image that cannot be read stops the run.
`--config.data.on_bad_image=skip` leaves such images out and lists them.

Cost: without a GPU, about half an hour at most, by the operations of the model.
Smaller machines: `--time=5m`.
"""

import re

from keras_vit import models, recipe
from keras_vit.models.registry import full_name
from keras_vit.planning import fitting, rules

DEFAULT_FOLDER = "images"
fit = fitting.fit  # the program calls it with the recipe and the changes that its flags make


def get_config(arguments: str = "", *, data: str | None = None, model: str | None = None) -> recipe.Recipe:
    """Return the fields that no rule chooses. Folder and variant are given in one text, or each by its name."""
    folder, variant = folder_and_variant(arguments)
    folder, variant = data or folder, full_name(model) if model else variant
    variant, checkpoint = (variant, recipe.pretrained(variant)) if variant else rules.DEFAULT_MODEL
    padding = {"pool_padding": "zeros"} if variant in models.BIT else {}  # that of the published files
    return recipe.Recipe(
        deterministic=False,
        log_every=10,
        model=recipe.Model(variant, 224, checkpoint, head="reset", arguments=padding),
        data=recipe.Data(
            source=folder if ":" in folder else f"folder:{folder}",
            pp_train="decode|resize(224)|value_range(-1, 1)",
            pp_eval="decode|resize(224)|value_range(-1, 1)",
        ),
        optim=recipe.Optim(schedule=recipe.Schedule("cosine"), momentum=0.9, clip_norm=1.0),
    )


def folder_and_variant(arguments: str) -> tuple[str, str | None]:
    """Split the argument into a folder, whose name may hold commas, and a variant, which may be left out."""
    folder, comma, variant = (arguments or "").rpartition(",")
    variant = variant.strip()
    if comma and (variant in ("", *models.list_models()) or re.fullmatch(r"(ViT|BiT|R\d*)[_+-][\w/+-]+", variant)):
        return folder.strip() or DEFAULT_FOLDER, full_name(variant) if variant else None
    return (arguments or "").strip() or DEFAULT_FOLDER, None
