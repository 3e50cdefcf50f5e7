"""The fields of a recipe, as nested dataclasses.

A recipe file returns a `Recipe` from `get_config()`. Flags such as `--config.optim.learning_rate=0.01` override single
fields. The `config.json` of a run contains the recipe that was used. Unknown fields are errors.
"""

import dataclasses
from typing import Any

from keras_vit.optim.config import Optim
from keras_vit.optim.optimizers import OPTIMIZERS
from keras_vit.optim.schedules import DECAYS
from keras_vit.outputs import CLASSIFICATION
from keras_vit.tasks import Task, parse_task

# Fields of `Model` that are arguments of the constructor of the model.
ARGUMENT_FIELDS = ("image_size", "remat", "attention_chunk_size")


class TaskField:
    """Descriptor for a dataclass field that stores a task. Assigning a text to the field parses the text."""

    def __get__(self, recipe: Any, owner: type) -> Any:
        return "classification" if recipe is None else recipe.__dict__["task"]

    def __set__(self, recipe: Any, value: str | Task) -> None:
        recipe.__dict__["task"] = parse_task(value)


@dataclasses.dataclass
class Model:
    """The model to train.

    Attributes:
        variant: Name of the model, one of `keras_vit.list_models()`.
        image_size: Height and width of the square training images, in pixels.
        weights: Initial weights: a name of `keras_vit.list_weights(variant)`, a model of the Hugging Face hub
            (`"hf:OWNER/NAME"`), or a file or directory that `keras_vit.load_checkpoint` reads. The model then has the
            architecture of these weights, except for `arguments`. None trains from scratch.
        head: Whether to `"keep"` or `"reset"` the head of `weights`. `"auto"` keeps the head if the number of classes
            is the same, and resets the head if a class name has another index.
        remat: `"blocks"` recomputes each encoder block in the backward pass, to save memory. `"none"` or None disables
            rematerialization.
        attention_chunk_size: Number of queries whose attention weights are computed at a time; see `SelfAttention`.
        arguments: All other arguments of `VisionTransformer` or `BiTResNet` by name, such as
            `{"pooling": "gap", "layer_scale": 1e-4}`. These arguments take precedence over the variant and the
            architecture of `weights`.

    Example:
    >>> Model("ViT-S/16", image_size=224, arguments={"pooling": "gap"}).arguments
    {'pooling': 'gap'}
    """

    variant: str = "ViT-S/16"
    image_size: int = 224
    weights: str | None = None
    head: str = "auto"
    remat: str | None = None
    attention_chunk_size: int | None = None
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)

    def constructor_arguments(self) -> dict[str, Any]:
        """Return the arguments that are set for the constructor of the model."""
        fields = {name: getattr(self, name) for name in ARGUMENT_FIELDS if getattr(self, name) is not None}
        return {**fields, **self.arguments}


@dataclasses.dataclass
class Data:
    """The images and their preprocessing.

    Attributes:
        source: Name for `keras_vit.data.open_source`, such as `"digits"` or `"folder:/images"`.
        train_split: Training split, written as in TensorFlow Datasets (`"train[:98%]"`).
        eval_split: Evaluation split, which chooses the best checkpoint and ends the training early.
        pp_train: Preprocessing of training images, such as `"decode|resize(224, antialias=True)|flip_lr"`.
        pp_eval: Preprocessing of images in evaluation, which is stored with the model.
        batch_size: Number of examples per step, over all devices.
        eval_batch_size: Number of examples per evaluation batch, over all devices. None means `batch_size`.
        mixup: `alpha` of the Beta distribution of mixup. 0 disables it.
        cutmix: `alpha` of the Beta distribution of CutMix. 0 disables it.
        shuffle_buffer: Size of the shuffle buffer, in examples, for sources that cannot be shuffled as a whole.
        on_bad_image: Policy for images that cannot be read: `"error"`, or `"skip"` to count and list them.
        test_split: Split that is evaluated once, after the last step, and reported. None reports `eval_split`.

    Example:
    >>> Data("digits", pp_train="flip_lr|value_range(-1, 1)", pp_eval="value_range(-1, 1)").source
    'digits'
    """

    source: str = "digits"
    train_split: str = "train"
    eval_split: str = "test"
    pp_train: str = "decode|resize(224, antialias=True)|flip_lr|value_range(-1, 1)"
    pp_eval: str = "decode|resize(224, antialias=True)|value_range(-1, 1)"
    batch_size: int = 128
    eval_batch_size: int | None = None
    mixup: float = 0.0
    cutmix: float = 0.0
    shuffle_buffer: int = 50_000
    on_bad_image: str = "error"
    test_split: str | None = None


@dataclasses.dataclass
class Recipe:
    """A training run.

    Attributes:
        seed: Seed of the initial weights, the order of the data, augmentation and dropout.
        total_steps: Number of steps. 0 only fits the head (`head_images`).
        time: Time budget for training, in seconds. A new run measures a few steps and sets `total_steps` to the number
            of steps that fit. 0 does not change `total_steps`.
        precision: `"float32"`, `"mixed_bfloat16"` (computed in bfloat16, stored in float32) or `"bfloat16"`.
        deterministic: Whether every run computes the same bits. This is slower on some accelerators.
        jit: Whether to compile the step with XLA: `"auto"`, `"on"` or `"off"`.
        task: Learning task from `keras_vit.recipe`: `Classification()`, `MultiLabel()`, `Distillation(...)`,
            `Regression(...)` or `Segmentation(...)`, or without labels `MaskedPatch(...)` or `MAE(...)`. A text such as
            `"mae(mask_ratio=0.5)"` is parsed.
        loss: Cross-entropy for classification, `"softmax"` or `"sigmoid"`.
        label_smoothing: Fraction of the label that is spread evenly over all classes.
        adapt: Weights to train: `"all"`, `"head"`, `"last(4)"`, `"bias"`, `"lora(rank=8, alpha=16,
            layers='query|value')"` or `"weights('norm|head')"`; see `keras_vit.adapt`.
        class_weight_exponent: Exponent of the class weights in the loss. 1 weights each class in inverse proportion to
            its number of training images, so that all classes count equally. 0.5 uses the square root of these weights,
            and 0 disables them.
        head_images: Number of training images to whose features the head is fitted before the first step, in place of
            its initial weights. The fit is exact, and cross-validation chooses its regularization. The training then
            starts from the fitted head, which is evaluated and saved as step 0. 0 keeps the initial weights.
        steps_per_loop: Largest number of steps that run on the devices without returning to Python.
        log_every: Number of steps between two lines of metrics. 0 logs only at the end.
        eval_every: Number of steps between two evaluations. 0 evaluates only at the end.
        patience: Number of consecutive evaluations without a better score after which training stops. 0 disables
            early stopping.
        checkpoint_every: Number of steps between two checkpoints. 0 saves only at the end.
        keep_checkpoints: Number of newest checkpoints to keep, in addition to the best checkpoint.
        evaluators: Evaluators to run in addition to the accuracy on `data.eval_split`, such as `"knn"` or
            `"fewshot(source='tfds:oxford_iiit_pet', every=25_000)"`. An evaluator runs every `every` steps, by default
            `eval_every`; see `keras_vit.evaluators.Suite`.
        model: The model.
        data: The images and their preprocessing.
        optim: Optimizer and weight updates.

    Example:
    >>> recipe = Recipe(
    ...     total_steps=500,
    ...     model=Model("ViT-Ti/16", image_size=32, arguments={"patch_size": 4, "pooling": "gap"}),
    ...     data=Data(source="digits", pp_train="resize(32)|value_range(-1, 1)", batch_size=64),
    ...     optim=Optim("adamw", learning_rate=1e-3, schedule=Schedule("cosine", warmup_steps=50)),
    ... )
    >>> recipe.optim.schedule.name
    'cosine'
    """

    seed: int = 0
    total_steps: int = 1_000
    time: float = 0.0
    precision: str = "float32"
    deterministic: bool = True
    jit: str = "auto"
    task: TaskField = TaskField()
    loss: str = "softmax"
    label_smoothing: float = 0.0
    adapt: str = "all"
    class_weight_exponent: float = 0.0
    head_images: int = 0
    steps_per_loop: int = 100
    log_every: int = 50
    eval_every: int = 0
    patience: int = 0
    checkpoint_every: int = 1_000
    keep_checkpoints: int = 2
    evaluators: tuple[str, ...] = ()
    model: Model = dataclasses.field(default_factory=Model)
    data: Data = dataclasses.field(default_factory=Data)
    optim: Optim = dataclasses.field(default_factory=Optim)


# Fields that are computed from `time` if it is set, by path.
OF_TIME = ("total_steps", "eval_every", "checkpoint_every", "optim.schedule.warmup_steps")
# Allowed values and minimum values of fields, by path.
CHOICES = {
    "precision": ("float32", "mixed_bfloat16", "bfloat16"),
    "jit": ("auto", "on", "off"),
    "loss": CLASSIFICATION,
    "model.head": ("auto", "keep", "reset"),
    "model.remat": (None, "none", "blocks"),
    "data.on_bad_image": ("error", "skip"),
    "optim.name": tuple(OPTIMIZERS),
    "optim.momentum_dtype": ("float32", "bfloat16"),
    "optim.schedule.name": tuple(DECAYS),
}
MINIMUM = {
    "head_images": 0,
    "time": 0,
    "steps_per_loop": 1,
    "keep_checkpoints": 1,
    "log_every": 0,
    "eval_every": 0,
    "patience": 0,
    "checkpoint_every": 0,
    "label_smoothing": 0,
    "class_weight_exponent": 0,
    "data.batch_size": 1,
    "data.eval_batch_size": 1,
    "data.mixup": 0,
    "data.cutmix": 0,
    "optim.learning_rate": 0,
    "optim.weight_decay": 0,
    "optim.clip_norm": 0,
    "optim.accumulation_steps": 1,
    "optim.schedule.warmup_steps": 0,
}
