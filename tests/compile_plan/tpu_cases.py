"""Every model of the family at small width, with every option of a step, for the TPU compiler."""

import dataclasses

import keras_vit
from keras_vit import recipe as recipes
from keras_vit.models import BIT, VIT
from tests import tiny

CLASSES, BATCH, SIZE = 4, 64, 32
TINY = {**tiny.ARGUMENTS, "num_layers": 2}


def structures():
    """{name: fields of `recipe.Model`}: what differs only in width and depth is the same program, and is here once."""
    cases = {}
    for variant in keras_vit.list_models():
        if variant in VIT:
            blocks = VIT[variant].resnet_blocks
            kind = "ViT" if blocks is None else f"hybrid of {len(blocks)} stages"
            fields = {**TINY, "patch_size": 8}
            if blocks is not None:
                fields |= {"patch_size": 1, "resnet_blocks": (1,) * len(blocks)}
        else:
            assert variant in BIT
            kind, fields = "BiT", {"block_sizes": (1, 1), "width_factor": 1}
        cases.setdefault(kind, recipes.Model(variant, image_size=SIZE, arguments=fields))
    variants = {
        "map head": {"pooling": "map", "representation_size": 8},
        "gap, sincos, registers": {"pooling": "gap", "position_embedding": "sincos2d", "num_registers": 2},
        "relative": {"position_embedding": "relative"},
        "learned2d": {"position_embedding": "learned2d"},
        "no positions": {"position_embedding": "none"},
    }
    plain = {**TINY, "patch_size": 8}
    remat = {"rematerialised": recipes.Model("ViT-Ti/16", SIZE, remat="blocks", arguments=plain)}
    models = {name: recipes.Model("ViT-Ti/16", SIZE, arguments={**plain, **more}) for name, more in variants.items()}
    return cases | models | remat


FEATURES = {
    "mixup": {"data.mixup": 0.2, "data.cutmix": 1.0},
    "dropout": {"model.arguments.dropout_rate": 0.1, "model.arguments.attention_dropout_rate": 0.1},
    "drop-path": {"model.arguments.drop_path_rate": 0.1},
    "averages": {"optim.ema_momentum": 0.9999},
    "accumulation": {"optim.accumulation_steps": 2},
}
EVERYTHING = {name: value for fields in FEATURES.values() for name, value in fields.items()}
SETTINGS = {"plain": {}, **FEATURES, "everything": EVERYTHING}


def has(model: recipes.Model, setting: str) -> bool:
    """Whether a model has the fields of a setting: BiT ResNets have no dropout and no stochastic depth."""
    return model.variant in VIT or setting not in ("dropout", "drop-path")


def recipe(model: recipes.Model, precision: str, setting: str) -> recipes.Recipe:
    """The recipe of a case, with the update of one of the optimizers."""
    fields = {"model": model, "data": recipes.Data(source="tfds:imagenet2012"), "optim": recipes.Optim(name="sgd")}
    fields["data"].batch_size = BATCH
    fields["data"].pp_train = f"decode|inception_crop({SIZE})|flip_lr|value_range(-1, 1)"
    fields["data"].pp_eval = f"decode|resize({SIZE})|value_range(-1, 1)"
    if setting == "everything":
        fields["optim"] = recipes.Optim(name="adamw", momentum_dtype="bfloat16", weight_decay=0.1, layer_decay=0.9)
    for path, value in SETTINGS[setting].items():
        part, _, name = path.partition(".")
        if part == "model":
            if model.variant in VIT:
                arguments = {**fields["model"].arguments, name.removeprefix("arguments."): value}
                fields["model"] = dataclasses.replace(fields["model"], arguments=arguments)
        else:
            fields[part] = dataclasses.replace(fields[part], **{name: value})
    if model.variant not in VIT:
        fields["optim"] = dataclasses.replace(fields["optim"], layer_decay=1.0)
    return recipes.check(recipes.Recipe(precision=precision, **fields))
