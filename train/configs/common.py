"""Shared parts of the recipes: augmentation levels, evaluators, pre-training, arguments, BiT-HyperRule."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from keras_vit import models
from keras_vit import recipe as recipes
from keras_vit.data import preprocess
from keras_vit.data.sources import Source
from keras_vit.util import checks
from keras_vit.zoo.variants import constructor_name

# Augmentation levels of "How to train your ViT?", figure 4: RandAugment, and the alpha of mixup.
AUGREG = {
    "none": ("", 0.0),
    "light1": ("randaug(2, 0)", 0.0),  # magnitude 0 of the reference's RandAugment changes images
    "light2": ("randaug(2, 10)", 0.2),
    "medium1": ("randaug(2, 15)", 0.2),
    "medium2": ("randaug(2, 15)", 0.5),
    "strong1": ("randaug(2, 20)", 0.5),
    "strong2": ("randaug(2, 20)", 0.8),
}

# ImageNet at 224 pixels, with big_vision's preprocessing.
PP_TRAIN = "decode_jpeg_and_inception_crop(224)|flip_lr{}|value_range(-1, 1)"
PP_EVAL = "decode|resize_small(256)|central_crop(224)|value_range(-1, 1)"
IMAGENET = "tfds:imagenet2012"
IMAGENET_TRAIN = 1_268_355  # images in train[:99%], the training split of the published runs
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
    f"fewshot(name='{name}', source='{source}', train_split='{train}', split='{test}', pp='{_FEWSHOT_PP}', "
    "every=25_000)"
    for name, (source, train, test) in _FEWSHOT_DATA.items()
)


def fashion_mnist(folder: str) -> str:
    """Return the source of Fashion-MNIST in a folder. An empty string means the folder of Debian's package."""
    return f"fashion_mnist:{folder}" if folder else "fashion_mnist"


def arguments(text: str | None, *defaults: str) -> list[str]:
    """Split the text after the colon of `--config=file.py:ViT_B16,cifar10`.

    Args:
        text: Values joined by commas. Missing or empty values are replaced by their defaults.
        *defaults: Default of each argument of the recipe.

    Returns:
        One value for each default.

    Raises:
        ValueError: If there are too many values.
    """
    values = [value.strip() for value in (text or "").split(",")]
    if len(values) > len(defaults):
        raise ValueError(
            f"This recipe takes {len(defaults)} arguments, such as :{','.join(defaults)}. Received: :{text}"
        )
    values += [""] * (len(defaults) - len(values))
    return [value or default for value, default in zip(values, defaults, strict=True)]


def variant(text: str, among: Collection[str] | None = None) -> str:
    """Return the name of a model, such as `"ViT-B/16"`. The argument is the name or the constructor (`"ViT_B16"`).

    Args:
        text: Argument of the recipe.
        among: Names of the models that the recipe supports. None means all models.

    Raises:
        ValueError: If the model does not exist, or the recipe does not support it. The message suggests a similar name.
    """
    by_constructor = {constructor_name(name): name for name in models.list_models()}
    found = text if text in models.list_models() else by_constructor.get(text)
    allowed = [written for written, name in by_constructor.items() if among is None or name in among]
    if found is None:
        raise ValueError(f"There is no model {text!r}.{checks.nearest(text, allowed)} Available: {', '.join(allowed)}.")
    if constructor_name(found) not in allowed:
        raise ValueError(f"This recipe is not for {text!r}. It takes: {', '.join(allowed)}.")
    return found


def published_model(variant: str, *preferred: str, image_size: int = 224, **arguments: object) -> recipes.Model:
    """Return a model with a new head and published weights that were pre-trained on ImageNet-21k.

    Args:
        variant: Name of the model.
        *preferred: Names in `keras_vit.list_weights`. The first weights that exist replace the original weights.
        image_size: Height and width of the images.
        **arguments: Additional arguments of the model.
    """
    if variant in models.BIT:  # the published weights were trained with zero padding in the root's pooling
        arguments = {"pool_padding": "zeros", **arguments}
    weights = recipes.pretrained(variant, *preferred)
    return recipes.Model(variant, image_size=image_size, weights=weights, head="reset", arguments=arguments)


def augmented(level: str) -> tuple[str, float]:
    """Return the training preprocessing at 224 pixels and the alpha of mixup for a level of `AUGREG`."""
    checks.choice("level", level, tuple(AUGREG))
    randaug, mixup = AUGREG[level]
    return PP_TRAIN.format(f"|{randaug}" if randaug else ""), mixup


def pretraining(
    dataset: str,
    model: recipes.Model,
    optim: recipes.Optim,
    *,
    epochs: float,
    batch_size: int = 4_096,
    pp_train: str = PP_TRAIN.format(""),
    mixup: float = 0.0,
    **fields: Any,
) -> recipes.Recipe:
    """Return a recipe for pre-training at 224 pixels with big_vision's splits, evaluators and intervals.

    Args:
        dataset: `"imagenet2012"` or `"imagenet21k"`.
        model: The model.
        optim: Optimizer and weight updates.
        epochs: Number of passes over the training images.
        batch_size: Number of examples per step.
        pp_train: Preprocessing of training images.
        mixup: Alpha of mixup. 0 disables it.
        **fields: Additional fields of the recipe.
    """
    small = dataset == "imagenet2012"
    examples = IMAGENET_TRAIN if small else IMAGENET_21K_TRAIN
    evaluators = IMAGENET_EVALUATORS if small else IMAGENET_21K_EVALUATORS + FEWSHOT_EVALUATORS
    fields = {"log_every": 50, "eval_every": 1_000, "checkpoint_every": 1_000, "evaluators": evaluators, **fields}
    return recipes.Recipe(
        total_steps=steps(epochs, examples, batch_size),
        precision="mixed_bfloat16",
        deterministic=False,
        model=model,
        data=recipes.Data(
            source=IMAGENET if small else IMAGENET_21K,
            train_split="train[:99%]" if small else "full[51200:]",
            eval_split="validation" if small else "full[:25600]",
            pp_train=pp_train,
            pp_eval=PP_EVAL,
            batch_size=batch_size,
            mixup=mixup,
            shuffle_buffer=250_000,
        ),
        optim=optim,
        **fields,
    )


def augreg_adam() -> recipes.Optim:
    """Return the Adam settings of the plain ViT baselines and of AugReg."""
    return recipes.Optim(
        "adamw",
        learning_rate=1e-3,
        schedule=recipes.Schedule("cosine", warmup_steps=10_000),
        momentum_dtype="bfloat16",
        weight_decay=0.1,  # 1e-4 per step at the peak learning rate
        clip_norm=1.0,
    )


def bit_momentum(rate: float, decay: float, warmup_steps: int, batch_size: int = 4_096) -> recipes.Optim:
    """Return the momentum settings of BiT's pre-training. `rate` and `decay` are for a batch of 256."""
    return recipes.Optim(
        "sgd",
        learning_rate=rate / 256 * batch_size,
        schedule=recipes.Schedule("cosine", warmup_steps=warmup_steps),
        momentum=0.9,
        momentum_dtype="bfloat16",
        weight_decay=decay / rate,  # each step multiplies the weight decay by the learning rate
        clip_norm=1.0,
    )


def steps(epochs: float, examples: int, batch_size: int) -> int:
    """Return the number of steps in a number of epochs, rounded."""
    return max(1, round(epochs * examples / batch_size))


@dataclasses.dataclass(frozen=True)
class HyperRule:
    """Settings that BiT-HyperRule chooses for a data set.

    Attributes:
        resize: Size of training images before the crop.
        crop: Size of the random crop, and of images in evaluation.
        mixup: Alpha of mixup. 0 disables it.
        supports: Steps of the schedule: the end of the warm-up, three decays by a factor of ten, and the last step.
    """

    resize: int
    crop: int
    mixup: float
    supports: Sequence[int]

    def schedule(self) -> recipes.Schedule:
        """Return the learning-rate schedule for `supports[-1]` steps."""
        # The published code decays one step after the boundary.
        boundaries = tuple(step + 1 for step in self.supports[1:-1])
        return recipes.Schedule("steps", warmup_steps=self.supports[0], boundaries=boundaries, factor=0.1)


def first_image_size(source: Source) -> tuple[int, int]:
    """Return the height and width of a source's first image."""
    image = next(iter(source.examples()))["image"]
    height, width, _ = preprocess.host_function("decode")({"image": image})["image"].shape
    return height, width


def hyperrule(num_examples: int, height: int, width: int) -> HyperRule:
    """Choose the resolution, mixup and schedule by the number of examples and the size of the images.

    Args:
        num_examples: Number of training examples.
        height: Height of a typical image.
        width: Width of a typical image.

    References:
        [Big Transfer](https://arxiv.org/abs/1912.11370), section 3.3
    """
    resize, crop = (160, 128) if height * width < 96 * 96 else (512, 480)
    if num_examples < 20_000:
        return HyperRule(resize, crop, 0.0, (100, 200, 300, 400, 500))
    if num_examples < 500_000:
        return HyperRule(resize, crop, 0.1, (500, 3_000, 6_000, 9_000, 10_000))
    return HyperRule(resize, crop, 0.1, (500, 6_000, 12_000, 18_000, 20_000))
