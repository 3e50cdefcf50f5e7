"""What several recipes share: augmentation levels, evaluators, arguments after the colon, published rules."""

import dataclasses
import os
from collections.abc import Collection, Sequence

import tensorflow as tf

from keras_vit import _checks, models, zoo
from keras_vit import recipe as recipes
from keras_vit.data import preprocess
from keras_vit.data.sources import IndexedSource, Source

# Augmentation levels of "How to train your ViT?", figure 4: RandAugment and the alpha of mixup.
AUGREG = {
    "none": ("", 0.0),
    "light1": ("randaug(2, 0)", 0.0),  # magnitude 0 is not nothing in the reference's RandAugment
    "light2": ("randaug(2, 10)", 0.2),
    "medium1": ("randaug(2, 15)", 0.2),
    "medium2": ("randaug(2, 15)", 0.5),
    "strong1": ("randaug(2, 20)", 0.5),
    "strong2": ("randaug(2, 20)", 0.8),
}

# ImageNet at 224 pixels, as big_vision prepares it.
PP_TRAIN = "decode_jpeg_and_inception_crop(224)|flip_lr{}|value_range(-1, 1)"
PP_EVAL = "decode|resize_small(256)|central_crop(224)|value_range(-1, 1)"
IMAGENET = "tfds:imagenet2012"
IMAGENET_TRAIN = 1_268_355  # images in train[:99%], on which the published runs are trained
IMAGENET_21K = "tfds:imagenet21k"
IMAGENET_21K_TRAIN = 14_145_922  # images in full[51200:]

IMAGENET_EVALUATORS = (
    "classification(name='train', split='train[:2%]')",
    "classification(name='minival', split='train[99%:]')",
    "classification(name='v2', source='tfds:imagenet_v2', split='test')",
    "real(source='tfds:imagenet2012_real#label=real_label')",
)
IMAGENET_21K_EVALUATORS = (
    "classification(name='val', split='full[25600:51200]')",
    "classification(name='train', split='full[51200:76800]')",
)
_FEWSHOT_PP = "decode|resize(256)|central_crop(224)|value_range(-1, 1)"
_FEWSHOT_DATA = {
    "caltech": ("tfds:caltech101", "train", "test"),
    "cars": ("tfds:cars196:2.1.0", "train", "test"),
    "cifar100": ("tfds:cifar100", "train", "test"),
    "dtd": ("tfds:dtd", "train", "test"),
    "pets": ("tfds:oxford_iiit_pet", "train", "test"),
    "uc_merced": ("tfds:uc_merced", "train[:1000]", "train[1000:]"),
}
FEWSHOT_EVALUATORS = tuple(
    f"fewshot(name='{name}', source='{source}', train_split='{train}', eval_split='{test}', pp='{_FEWSHOT_PP}', "
    "every=25_000)"
    for name, (source, train, test) in _FEWSHOT_DATA.items()
)


def arguments(text: str | None, *defaults: str) -> list[str]:
    """Reads what stands behind the colon of `--config=file.py:ViT_B16,cifar10`.

    Args:
        text: Values joined by commas; missing or empty ones take their default.
        *defaults: One for each argument of the recipe.

    Returns:
        As many values as defaults.

    Raises:
        ValueError: If there are too many.
    """
    values = [value.strip() for value in (text or "").split(",")]
    if len(values) > len(defaults):
        raise ValueError(
            f"This recipe takes {len(defaults)} arguments, such as :{','.join(defaults)}. Received: :{text}"
        )
    values += [""] * (len(defaults) - len(values))
    return [value or default for value, default in zip(values, defaults, strict=True)]


def variant(text: str, among: Collection[str] | None = None) -> str:
    """The name of a model, given by its name (`"ViT-B/16"`) or as its constructor is written (`"ViT_B16"`).

    Args:
        text: What stands in the recipe's arguments.
        among: Names of the models that the recipe is for; all if None.

    Raises:
        ValueError: If there is no such model, or the recipe is not for it; names the nearest one.
    """
    by_constructor = {constructor(name): name for name in models.list_models()}
    found = text if text in models.list_models() else by_constructor.get(text)
    allowed = [written for written, name in by_constructor.items() if among is None or name in among]
    if found is None:
        raise ValueError(
            f"There is no model {text!r}.{_checks.nearest(text, allowed)} There are: {', '.join(allowed)}."
        )
    if constructor(found) not in allowed:
        raise ValueError(f"This recipe is not for {text!r}. It takes: {', '.join(allowed)}.")
    return found


def constructor(name: str) -> str:
    """How a model's name is written as a constructor: `"R50_B16"` for `"R50+ViT-B/16"`."""
    return name.replace("+ViT-", "_").replace("-", "_").replace("/", "")


def published_file(name: str, *preferred: str) -> str:
    """Name of the file in which a model's weights, trained on ImageNet-21k, are published.

    Args:
        name: Of the model.
        *preferred: Names of published weights, as in `keras_vit.list_weights`, that come before the original ones.

    Returns:
        The file of the first that there is; what it would be called if nothing is published for the model.
    """
    files = {weights.name: os.path.basename(weights.path) for weights in zoo.list_weights(name)}
    for weights in (*preferred, "imagenet21k", "augreg-imagenet21k", "bit-m"):
        if weights in files:
            return files[weights]
    return name.replace("/", "_") + ".npz"


def augmented(level: str) -> tuple[str, float]:
    """The training preprocessing at 224 pixels and the mixup of a level of `AUGREG`."""
    _checks.choice("level", level, tuple(AUGREG))
    randaug, mixup = AUGREG[level]
    return PP_TRAIN.format(f"|{randaug}" if randaug else ""), mixup


def steps(epochs: float, examples: int, batch_size: int) -> int:
    """Number of steps that are nearest to so many epochs."""
    return max(1, round(epochs * examples / batch_size))


@dataclasses.dataclass(frozen=True)
class HyperRule:
    """What BiT-HyperRule chooses for a data set.

    Attributes:
        resize: Size to which training images are brought.
        crop: Size of the random crop, and of images in evaluation.
        mixup: Its alpha; 0 is off.
        supports: Steps of the schedule: end of the warm-up, three decays by ten, end of the training.
    """

    resize: int
    crop: int
    mixup: float
    supports: Sequence[int]

    def schedule(self) -> recipes.Schedule:
        """The course of the learning rate; its total length is `supports[-1]`."""
        # The published code decays after the step of the boundary, not at it.
        boundaries = tuple(step + 1 for step in self.supports[1:-1])
        return recipes.Schedule("steps", warmup_steps=self.supports[0], boundaries=boundaries, factor=0.1)


def picture_size(source: Source) -> tuple[int, int]:
    """Height and width of the first picture of a source."""
    if isinstance(source, IndexedSource):
        image = source.fetch(tf.constant(0, tf.int64))["image"]
    else:
        image = source.parse(next(iter(source.read(tf.constant(0, tf.int64))))["record"])["image"]
    height, width, _ = preprocess.host_function("decode")({"image": image})["image"].shape
    return height, width


def hyperrule(num_examples: int, height: int, width: int) -> HyperRule:
    """Chooses resolution, mixup and schedule from the size of a data set and of its images.

    Args:
        num_examples: Training examples.
        height: Of a typical image.
        width: Of a typical image.

    References:
        [Big Transfer](https://arxiv.org/abs/1912.11370), section 3.3
    """
    resize, crop = (160, 128) if height * width < 96 * 96 else (512, 480)
    if num_examples < 20_000:
        return HyperRule(resize, crop, 0.0, (100, 200, 300, 400, 500))
    if num_examples < 500_000:
        return HyperRule(resize, crop, 0.1, (500, 3_000, 6_000, 9_000, 10_000))
    return HyperRule(resize, crop, 0.1, (500, 6_000, 12_000, 18_000, 20_000))
