"""Every recipe at a size that runs in seconds, on synthetic images."""

import functools
import importlib
import pathlib

import numpy as np
import tensorflow as tf

from keras_vit import models
from keras_vit import recipe as recipes
from keras_vit.data import readers, sources
from keras_vit.data.readers.data_set import DataSet
from keras_vit.evaluators import dataset

CONFIGS = pathlib.Path(__file__).parents[2] / "train" / "configs"
CLASSES = 3
EXAMPLES = 24

# Every file of train/configs, and the argument after its colon in the tests.
VARIATIONS = {
    "vit_s16_i1k": ("", "300"),
    "vit_i1k": ("", "ViT_S32,strong2"),
    "vit_i21k": ("", "ViT_Ti16,none"),
    "vit_paper": ("", "ViT_L16,imagenet2012", "ViT_H14,jft", "R50_B16,jft", "BiT_R50x1,jft"),
    "bit_i1k": ("", "BiT_R101x1"),
    "bit_i21k": ("",),
    "finetune": (
        "",
        "ViT_L16,imagenet2012",
        "ViT_H14,imagenet2012",
        "ViT_H14,pets",
        "R50_B16,flowers",
        "ViT_B16,vtab:dtd",
    ),
    "augreg_transfer": ("", "ViT_B32,imagenet2012,inception", "ViT_B32,pets,resize"),
    "bit_hyperrule": ("", "BiT_R50x1,imagenet2012", "BiT_R50x1,tfds:unknown"),
    "vtab": ("", "ViT_S16,clevr_count"),
    "cifar10_scratch": (None,),
    "cifar100_scratch": (None,),
    "folder": ("/images", "tfds:images,ViT_H14"),
    "segmentation": ("/images#masks=/masks,ViT_S16",),
    "ade20k": ("", "dinov3", "dinov2,ViT_S14"),
    "vit_masked_patch": ("", "ViT_S16,imagenet2012"),
    "mae_pretrain": ("", "ViT_L16,1600"),
    "mae_finetune": ("", "ViT_H14"),
    "mae_linear_probe": ("", "ViT_L16"),
    "digits": (None,),
    "fashion_mnist": (None,),
    "fashion_mnist_models": ("vit", "bit"),
    "fashion_mnist_hour": ("vit", "bit", "hybrid"),
    "mae_fashion_mnist": (None,),
    "masked_patch_fashion_mnist": (None,),
    "fashion_mnist_transfer": ("pretrain", "finetune", "scratch"),
}
CASES = [(name, arguments) for name, variations in VARIATIONS.items() for arguments in variations]
# One case of each optimizer and backbone, of both losses, with mixup, accumulation, averages and evaluators. The runs
# of `training/test_pretraining_runs.py` have the tasks without labels.
PROGRAM_SHAPES = [
    ("vit_i1k", ""),
    ("finetune", ""),
    ("bit_hyperrule", ""),
    ("cifar10_scratch", None),
    ("mae_linear_probe", ""),
    ("ade20k", "dinov3"),
]
# Cases that differ from another case only in numbers at toy width; their models are built at full size.
ONLY_BUILT = [
    ("vit_s16_i1k", "300"),
    ("vit_i1k", "ViT_S32,strong2"),
    ("vit_i21k", "ViT_Ti16,none"),
    ("vit_paper", "ViT_L16,imagenet2012"),
    ("vit_paper", "ViT_H14,jft"),
    ("vit_paper", "R50_B16,jft"),
    ("bit_i1k", "BiT_R101x1"),
    ("finetune", "ViT_H14,imagenet2012"),
    ("bit_hyperrule", "BiT_R50x1,tfds:unknown"),
    ("vtab", "ViT_S16,clevr_count"),
    ("vit_masked_patch", ""),
    ("mae_pretrain", "ViT_L16,1600"),
    ("mae_finetune", "ViT_H14"),
    ("mae_linear_probe", "ViT_L16"),
    ("ade20k", "dinov2,ViT_S14"),
]


def load(name, arguments):
    """The recipe that `--config=train/configs/NAME.py:ARGUMENTS` gives."""
    get_config = module(name).get_config
    return recipes.check(get_config() if arguments is None else get_config(arguments))


def module(name):
    """The file train/configs/NAME.py."""
    return importlib.import_module(f"train.configs.{name}")


def shrink(recipe):
    """The same recipe with a narrow, shallow model, two steps and small batches; everything else unchanged."""
    model, optim = recipe.model, recipe.optim
    model.weights = None
    if model.variant in models.VIT:
        tiny = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "mlp_dim": 16}
        if models.VIT[model.variant].resnet_blocks:
            tiny["resnet_blocks"] = (1,) * len(models.VIT[model.variant].resnet_blocks)
        if model.arguments.get("representation_size") is not None:
            tiny["representation_size"] = 8
    else:
        tiny = {"block_sizes": (1, 1), "width_factor": 1}
    model.arguments = {**model.arguments, **tiny}
    if isinstance(recipe.task, recipes.MAE):
        recipe.task = "mae(decoder_hidden_size=8, decoder_num_layers=1, decoder_num_heads=2)"
    recipe.total_steps, recipe.log_every, recipe.eval_every = 2, 1, 0
    recipe.data.batch_size = recipe.data.eval_batch_size = 8
    optim.accumulation_steps = min(optim.accumulation_steps, 2)
    optim.schedule.warmup_steps = min(optim.schedule.warmup_steps, 1)
    return recipes.check(recipe)


def write_images(folder):
    """JPEG files of 40 by 48 pixels, one color per class."""
    paths = []
    for index in range(EXAMPLES):
        image = np.full((40, 48, 3), 20, np.uint8)
        image[..., index % CLASSES] += np.uint8(10 * (index // CLASSES) + 100)
        path = folder / f"ILSVRC2012_val_{index + 1:08}.JPEG"
        path.write_bytes(tf.io.encode_jpeg(image).numpy())
        paths.append(str(path))
    return paths


def replace_readers(monkeypatch, folder):
    """Makes every source that is not in the package give the images, whatever its name and split."""
    paths = write_images(folder)
    labels = np.arange(EXAMPLES, dtype=np.int32) % CLASSES
    names = [f"class {number}" for number in range(CLASSES)]
    sizes = functools.partial(dict.fromkeys, ("train", "test"), EXAMPLES)

    def read_files(location, label="label", masks=None, classes=None, label_offset=0):
        if masks is not None:
            images = np.stack([tf.io.decode_jpeg(tf.io.read_file(path)).numpy() for path in paths])
            of_pixels = np.tile(labels[:, None, None], (1, *images.shape[1:3]))
            return DataSet(sizes, lambda split: sources.ArraySource(location, split, images, of_pixels, names, "mask"))
        given = np.eye(CLASSES, dtype=np.float32)[labels] if label == "real_label" else labels
        return DataSet(sizes, lambda split: sources.FileSource(location, split, paths, given, names))

    def read_grey(location=""):
        images = np.random.default_rng(0).integers(0, 255, (EXAMPLES, 28, 28, 1), np.uint8)
        return DataSet(sizes, lambda split: sources.ArraySource(location, split, images, labels, names))

    replaced = dict.fromkeys(("tfds", "vtab", "tfrecord", "folder"), read_files) | dict.fromkeys(
        ("fashion_mnist", "idx", "npz"), read_grey
    )
    reader_of = readers.reader_of
    monkeypatch.setattr(readers, "reader_of", lambda kind: replaced.get(kind) or reader_of(kind))


OPENED = {}


def split_opener(batch_size, on_bad_image="error"):
    """As `evaluators.split_opener`, for `replace_readers`, where all sources are alike: opens one for all recipes."""
    open_split = dataset.split_opener(batch_size, on_bad_image)

    def open_some(source, split, pp):
        key = (source.partition(":")[0] in ("digits", "fashion_mnist", "idx", "npz"), "real_label" in source, pp)
        if key not in OPENED:
            OPENED[key] = open_split(source, split, pp)
        return OPENED[key]

    return open_some
