"""The configuration of an update, as the recipe of a run holds it."""

import dataclasses


@dataclasses.dataclass
class Schedule:
    """The course of the learning rate over the steps; see `keras_vit.optim.schedules`.

    Attributes:
        name: `"constant"`, `"cosine"`, `"linear"`, `"rsqrt"` or `"steps"`.
        warmup_steps: Steps of linear growth from 0.
        end: Absolute rate at which `"cosine"` and `"linear"` end.
        timescale: Steps over which `"rsqrt"` first decays.
        cooldown_steps: Steps of linear decay to 0 at the end.
        boundaries: Steps at which `"steps"` multiplies the rate by `factor`.
        factor: Factor of each boundary.

    Example:
    >>> Schedule("cosine", warmup_steps=100).warmup_steps
    100
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
    """The update of the weights; see `keras_vit.optim` for the formulas.

    Attributes:
        name: `"sgd"`, `"lars"`, `"adamw"` or `"muon"`. `"muon"` is for the kernels of blocks, and AdamW at the same
            rate for all other weights.
        learning_rate: Peak rate.
        schedule: Course of the rate over the steps.
        momentum: Momentum of `"sgd"`, `"lars"` and `"muon"`; 0 is off.
        nesterov: Whether `"sgd"` or `"muon"` uses Nesterov's form.
        beta1: Memory of the first moment of `"adamw"`.
        beta2: Memory of the second moment of `"adamw"`.
        epsilon: Added to the square root of the second moment of `"adamw"`.
        momentum_dtype: Dtype of the stored first moment, `"float32"` or `"bfloat16"`.
        weight_decay: Decoupled weight decay: each step subtracts `rate * weight_decay * weight`.
        weight_decay_mask: Regular expression for the paths of the weights that decay; None for the kernels.
        clip_norm: Largest global norm of the gradient; 0 is off.
        accumulation_steps: Number of micro-batches per step (gradient accumulation), to save memory.
        layer_decay: Factor on the rate per layer from the head down; 1 is off.
        ema: Momentum of the moving average of the weights that is evaluated and exported; 0 is off.

    Example:
    >>> optim = Optim("sgd", learning_rate=0.03, schedule=Schedule("cosine", warmup_steps=100), clip_norm=1.0)
    >>> optim.schedule.name
    'cosine'
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
    weight_decay_mask: str | None = None
    clip_norm: float = 1.0
    accumulation_steps: int = 1
    layer_decay: float = 1.0
    ema: float = 0.0
