"""Recipes: everything that decides the result of a training run, as nested dataclasses.

A file in `train/configs/` returns a `Recipe` from `get_config()`; the command line overrides single fields
(`--config.optim.learning_rate=0.01`); `config.json` of a run holds the recipe that was used. Every field here is
read by the training program: an unknown field is an error, not a comment.
"""

import dataclasses


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
