"""Training on your own images, starting from published weights if possible.

    keras-vit train folder:/images
    keras-vit train folder:/images --model=hf:facebook/dinov2-base --time=20m
    keras-vit train folder:/images --model=ViT_S16 --weights=augreg-224 --image_size=224 --adapt=all
    keras-vit train folder:/images --weights=none
    keras-vit train --config=folder:/images,ViT_S16 --workdir=runs/images

`/images` contains one folder per class, with images such as `/images/rose/1.jpg`. `/images` can also contain `train/`
and `test/` or `val/` with such folders. Without these splits, a fifth of the images is used for testing.

The default model is DINOv2's ViT-S/14; `--model` sets another model. If the weights cannot be downloaded, a small
hybrid is trained from scratch, as with `--weights=none`.

The program chooses the image size, batch size, number of steps, optimizer, learning rate, trained weights and
augmentation to suit the images, the model and the machine. The rules and their measurements are in
docs/how_to/own_images.md. The choices are logged in six lines and written to config.json. Flags take precedence:
`--time=20m` plans the number of steps for twenty minutes, and `--image_size`, `--adapt` and `--config.FIELD=VALUE` set
individual fields.

With fewer than 20,000 images, training stops after three consecutive evaluations without a better accuracy.
`--config.patience=0` disables this. The log reports if the classes have very different numbers of images; with
`--config.class_weight_exponent=1`, all classes count equally in the loss. An image that cannot be read stops the run.
`--config.data.on_bad_image=skip` skips such images and lists them.

Cost: without a GPU, at most about half an hour, estimated from the operations of the model.
Smaller machines: `--time=5m`.
"""

import re

from keras_vit import models, recipe
from keras_vit.training.planning import fitting, rules
from keras_vit.zoo.variants import full_name

DEFAULT_FOLDER = "images"
fit = fitting.fit  # the program calls `fit` with the recipe and the changes from flags


def get_config(arguments: str = "", *, data: str | None = None, model: str | None = None) -> recipe.Recipe:
    """Return a recipe with the fields that no rule chooses.

    The folder and the variant are given as one text, or as `data` and `model`.
    """
    folder, variant = folder_and_variant(arguments)
    folder, variant = data or folder, full_name(model) if model else variant
    variant, weights = (variant, recipe.pretrained(variant)) if variant else rules.DEFAULT_MODEL
    padding = {"pool_padding": "zeros"} if variant in models.BIT else {}  # as in the published files
    return recipe.Recipe(
        deterministic=False,
        log_every=10,
        model=recipe.Model(variant, 224, weights, head="reset", arguments=padding),
        data=recipe.Data(
            source=folder if ":" in folder else f"folder:{folder}",
            pp_train="decode|resize(224, antialias=True)|value_range(-1, 1)",
            pp_eval="decode|resize(224, antialias=True)|value_range(-1, 1)",
        ),
        optim=recipe.Optim(schedule=recipe.Schedule("cosine"), momentum=0.9, clip_norm=1.0),
    )


def folder_and_variant(arguments: str) -> tuple[str, str | None]:
    """Split the argument into a folder, whose name can contain commas, and a variant, which is optional."""
    folder, comma, variant = (arguments or "").rpartition(",")
    variant = variant.strip()
    if comma and (variant in ("", *models.list_models()) or re.fullmatch(r"(ViT|BiT|R\d*)[_+-][\w/+-]+", variant)):
        return folder.strip() or DEFAULT_FOLDER, full_name(variant) if variant else None
    return (arguments or "").strip() or DEFAULT_FOLDER, None
