"""Recipes: everything that decides the result of a training run, as nested dataclasses.

A file in `train/configs/` returns a `Recipe` from `get_config()`; the command line overrides single fields
(`--config.optim.learning_rate=0.01`); `config.json` of a run holds the recipe that was used. Every field here is
read by the training program: an unknown field is an error, not a comment.
"""

import ast
import dataclasses
import difflib
import types
import typing


@dataclasses.dataclass
class Model:
    """Which network to train. `None` keeps what the variant defines.

    Attributes:
        variant: a name of `keras_vit.list_models()`, such as `"ViT-S/16"`.
        image_size: height and width of the square training images, in pixels.
        patch_size, hidden_size, num_layers, num_heads, mlp_dim: sizes of the transformer.
        resnet_blocks: units of each ResNet stage of a hybrid; `()` keeps only the stem.
        block_sizes, width_factor: units of each stage of a BiT ResNet, and the multiple of its channels.
        pooling: `"token"`, `"gap"` or `"map"`.
        representation_size: width of the `tanh` layer before the head.
        position_embedding: `"learned"`, `"learned2d"`, `"sincos2d"`, `"relative"` or `"none"`.
        num_registers: extra tokens that take part in attention and are then dropped.
        dropout_rate, attention_dropout_rate, drop_path_rate: regularisation, off during evaluation.
        head_bias: initial bias of the head (-10 for sigmoid losses over many classes).
        remat: `"blocks"` recomputes each encoder block in the backward pass to save memory.
        attention_chunk_size: queries whose attention weights are there at a time, for long sequences.
        checkpoint: file of initial weights, anything `keras_vit.load_checkpoint` reads.
        head: what becomes of the head in `checkpoint`: `"auto"`, `"keep"` or `"reset"`.
    """

    variant: str = "ViT-S/16"
    image_size: int = 224
    patch_size: int | None = None
    hidden_size: int | None = None
    num_layers: int | None = None
    num_heads: int | None = None
    mlp_dim: int | None = None
    resnet_blocks: tuple[int, ...] | None = None
    block_sizes: tuple[int, ...] | None = None
    width_factor: int | None = None
    pooling: str | None = None
    representation_size: int | None = None
    position_embedding: str | None = None
    num_registers: int | None = None
    dropout_rate: float | None = None
    attention_dropout_rate: float | None = None
    drop_path_rate: float | None = None
    head_bias: float | None = None
    remat: str | None = None
    attention_chunk_size: int | None = None
    checkpoint: str | None = None
    head: str = "auto"


@dataclasses.dataclass
class Data:
    """Where the images come from and what is done to them.

    Attributes:
        source: a name for `keras_vit.data.open_source`, such as `"digits"` or `"folder:/pictures"`.
        train_split, eval_split: splits, written as in TensorFlow Datasets (`"train[:98%]"`).
        pp_train, pp_eval: preprocessing, written as `"decode|resize(224)|flip_lr|value_range(-1, 1)"`.
        batch_size: examples per step, over all devices.
        eval_batch_size: the same for evaluation; `None` takes `batch_size`.
        mixup, cutmix: the `alpha` of their Beta distributions; 0 is off.
        shuffle_buffer: examples to shuffle among where a source cannot be shuffled as a whole.
        on_bad_image: `"error"` or `"skip"` (counted and listed).
    """

    source: str = "digits"
    train_split: str = "train"
    eval_split: str = "test"
    pp_train: str = "decode|resize(224)|flip_lr|value_range(-1, 1)"
    pp_eval: str = "decode|resize(224)|value_range(-1, 1)"
    batch_size: int = 128
    eval_batch_size: int | None = None
    mixup: float = 0.0
    cutmix: float = 0.0
    shuffle_buffer: int = 50_000
    on_bad_image: str = "error"


@dataclasses.dataclass
class Schedule:
    """The learning rate as a share of `optim.learning_rate`; see `keras_vit.optim.schedules`.

    Attributes:
        name: `"constant"`, `"cosine"`, `"linear"`, `"rsqrt"` or `"steps"`.
        warmup_steps: steps of linear growth from 0.
        end: the rate at which `"cosine"` (default 0) and `"linear"` end: a rate, not a share.
        timescale: steps over which `"rsqrt"` first decays.
        cooldown_steps: steps of linear decay to 0 at the end of `"rsqrt"`.
        boundaries: steps at which `"steps"` multiplies the rate by `factor`.
        factor: see `boundaries`.
    """

    name: str = "cosine"
    warmup_steps: int = 0
    end: float = 0.0
    timescale: int = 10_000
    cooldown_steps: int = 0
    boundaries: tuple[int, ...] = ()
    factor: float = 0.1


@dataclasses.dataclass
class Optim:
    """How weights are updated; see `keras_vit.optim` for the exact meaning of each number.

    Attributes:
        name: `"sgd"` or `"adamw"`; `"adam"` is another name of the latter.
        learning_rate: the peak rate.
        schedule: its course over the steps.
        momentum: of `"sgd"`; 0 is plain gradient descent.
        nesterov: Nesterov's form of it.
        beta1, beta2, epsilon: of `"adam"` and `"adamw"`.
        momentum_dtype: how the first moment is stored, `"float32"` or `"bfloat16"`.
        weight_decay: decoupled; each step subtracts `rate * weight_decay * weight`.
        weight_decay_mask: regular expression for the paths of the weights that decay.
        clip_norm: largest norm of the whole gradient; 0 is off.
        accumulation_steps: micro-batches that make up a step, to save memory.
        layer_decay: factor on the rate per layer from the head down; 1 is off.
        frozen: regular expression for the paths of weights that do not change; empty is off.
        ema: momentum of the moving average of the weights that is evaluated and exported; 0 is off.
    """

    name: str = "adamw"
    learning_rate: float = 1e-3
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    momentum: float = 0.9
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    momentum_dtype: str = "float32"
    weight_decay: float = 0.0
    weight_decay_mask: str = "kernel$"
    clip_norm: float = 1.0
    accumulation_steps: int = 1
    layer_decay: float = 1.0
    frozen: str = ""
    ema: float = 0.0


@dataclasses.dataclass
class Recipe:
    """A whole training run.

    Attributes:
        seed: of initial weights, order of the data, augmentation and dropout.
        total_steps: length of the run.
        precision: `"float32"` or `"mixed_bfloat16"` (computed in bfloat16, stored in float32).
        deterministic: the same bits in every run; slower on some accelerators.
        jit: compile the step with XLA: `"auto"`, `"on"` or `"off"`.
        loss: `"softmax"` or `"sigmoid"` cross-entropy.
        label_smoothing: share of the label spread over all classes.
        steps_per_loop: most steps that run on the devices without coming back to Python.
        log_every, eval_every, checkpoint_every: in steps; 0 is at the end only.
        keep_checkpoints: newest checkpoints that are kept, beside the best.
        evaluators: what to measure beside the accuracy on `data.eval_split`, every `eval_every` steps or as they say:
            `"knn"`, `"fewshot(source='tfds:oxford_iiit_pet', every=25_000)"`; see `keras_vit.evaluators.Suite`.
        model, data, optim: see there.
    """

    seed: int = 0
    total_steps: int = 1_000
    precision: str = "float32"
    deterministic: bool = True
    jit: str = "auto"
    loss: str = "softmax"
    label_smoothing: float = 0.0
    steps_per_loop: int = 100
    log_every: int = 50
    eval_every: int = 0
    checkpoint_every: int = 1_000
    keep_checkpoints: int = 2
    evaluators: tuple[str, ...] = ()
    model: Model = dataclasses.field(default_factory=Model)
    data: Data = dataclasses.field(default_factory=Data)
    optim: Optim = dataclasses.field(default_factory=Optim)


CHOICES = {
    "precision": ("float32", "mixed_bfloat16", "bfloat16"),
    "jit": ("auto", "on", "off"),
    "loss": ("softmax", "sigmoid"),
    "model.head": ("auto", "keep", "reset"),
    "model.remat": (None, "none", "blocks"),
    "data.on_bad_image": ("error", "skip"),
    "optim.name": ("sgd", "adam", "adamw"),
    "optim.momentum_dtype": ("float32", "bfloat16"),
    "optim.schedule.name": ("constant", "cosine", "linear", "rsqrt", "steps"),
}
AT_LEAST = {
    "total_steps": 1,
    "steps_per_loop": 1,
    "keep_checkpoints": 1,
    "log_every": 0,
    "eval_every": 0,
    "checkpoint_every": 0,
    "label_smoothing": 0,
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


def to_dict(recipe: Recipe) -> dict:
    """Returns the recipe as plain dictionaries, ready for JSON."""
    return dataclasses.asdict(recipe)


def from_dict(values: dict) -> Recipe:
    """Builds a recipe from plain dictionaries, such as `config.json` holds.

    Args:
        values: fields by name; a missing one keeps its default.

    Returns:
        The recipe, checked.

    Raises:
        ValueError: for an unknown field, a wrong type or a value out of range.
    """
    return check(_build(Recipe, values, prefix=""))


def check(recipe: Recipe) -> Recipe:
    """Returns the recipe if the type and range of every field are right.

    Raises:
        ValueError: naming the field, what was expected and what came.
    """
    recipe = _build(Recipe, to_dict(recipe), prefix="")
    for path, allowed in CHOICES.items():
        value = get(recipe, path)
        if value not in allowed:
            raise ValueError(f"{path} must be one of {', '.join(map(repr, allowed))}. Received: {path}={value!r}")
    for path, least in AT_LEAST.items():
        value = get(recipe, path)
        if value is not None and value < least:
            raise ValueError(f"{path} must be at least {least}. Received: {path}={value}")
    batch_size, micro_batches = recipe.data.batch_size, recipe.optim.accumulation_steps
    if batch_size % micro_batches:
        raise ValueError(
            f"data.batch_size must be a multiple of optim.accumulation_steps={micro_batches}. Received: "
            f"data.batch_size={batch_size}. The nearest that works is {nearest_multiple(batch_size, micro_batches)}."
        )
    return recipe


def get(recipe: Recipe, path: str):
    """Returns the field at a dotted path.

    Raises:
        ValueError: if there is no such field; names the nearest one.
    """
    value, passed = recipe, []
    for name in path.split("."):
        names = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        if name not in names:
            raise ValueError(_unknown(".".join([*passed, name]), names, passed))
        value = getattr(value, name)
        passed.append(name)
    return value


def override(recipe: Recipe, path: str, text: str) -> Recipe:
    """Return a recipe with one field set from the command line.

    Args:
        recipe: The recipe before.
        path: Dotted path of the field.
        text: The value as Python writes it, a string without quotes. An empty text or `None` means None where a field
            may be None.

    Raises:
        ValueError: If there is no such field, or the value is of the wrong type.
    """
    current = get(recipe, path)
    if dataclasses.is_dataclass(current):
        names = ", ".join(f"{path}.{field.name}" for field in dataclasses.fields(current))
        raise ValueError(f"{path} is a group of fields. Set one of them: {names}.")
    values = to_dict(recipe)
    *parents, name = path.split(".")
    group = values
    for parent in parents:
        group = group[parent]
    group[name] = _parse(text, _annotation(path), path)
    return _build(Recipe, values, prefix="")


def _annotation(path: str):
    """Return the annotated type of the field at a dotted path."""
    kind = Recipe
    for name in path.split("."):
        kind = {field.name: field.type for field in dataclasses.fields(kind)}[name]
    return kind


def _parse(text: str, expected, path: str):
    """Return the value that a text on the command line means for a field of type `expected`."""
    if isinstance(expected, types.UnionType):  # X | None
        return None if text in ("", "None") else _parse(text, typing.get_args(expected)[0], path)
    if expected is str:
        return text
    if expected is bool and text.lower() in ("true", "false", "1", "0"):
        return text.lower() in ("true", "1")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = text
    if typing.get_origin(expected) is tuple and not isinstance(value, (tuple, list)):
        value = (value,) if text else ()
    return value


def nearest_multiple(number: int, divisor: int) -> int:
    """Returns the positive multiple of `divisor` nearest to `number`."""
    return max(divisor, divisor * round(number / divisor))


def _unknown(path: str, names: list[str], parents: list[str]) -> str:
    near = difflib.get_close_matches(path.rsplit(".", 1)[-1], names, n=1, cutoff=0.4)
    hint = f" Did you mean {'.'.join([*parents, near[0]])}?" if near else ""
    known = f" Known fields there: {', '.join(names)}." if names else " It has no fields of its own."
    return f"The recipe has no field {path}.{hint}{known}"


def _build(kind: type, values: dict, prefix: str):
    """Builds dataclass `kind` from a dictionary, recursively, checking each type."""
    if not isinstance(values, dict):
        raise ValueError(f"{prefix.rstrip('.') or 'A recipe'} must be a dictionary of fields. Received: {values!r}")
    fields = {field.name: field.type for field in dataclasses.fields(kind)}
    for name in values:
        if name not in fields:
            raise ValueError(_unknown(prefix + name, list(fields), prefix.split(".")[:-1]))
    return kind(**{name: _convert(value, fields[name], prefix + name) for name, value in values.items()})


def _convert(value, expected, path: str):
    """Returns `value` as the annotated type `expected`, or explains why it cannot be."""
    if isinstance(expected, types.UnionType):  # X | None
        return None if value is None else _convert(value, typing.get_args(expected)[0], path)
    if dataclasses.is_dataclass(expected):
        return _build(expected, value, path + ".")
    if typing.get_origin(expected) is tuple and isinstance(value, (tuple, list)):
        element = typing.get_args(expected)[0]
        return tuple(_convert(item, element, path) for item in value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if expected is float and number:
        return float(value)
    if expected is int and number and value == int(value):
        return int(value)
    if expected in (bool, str) and isinstance(value, expected):
        return value
    name = getattr(expected, "__name__", str(expected)) if typing.get_origin(expected) is None else str(expected)
    raise ValueError(f"{path} must be of type {name}. Received: {path}={value!r}, of type {type(value).__name__}.")
