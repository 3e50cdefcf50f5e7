"""Configuration of the optimizer and its schedule, a part of the recipe."""

import dataclasses


@dataclasses.dataclass
class Schedule:
    """Learning-rate schedule; see `keras_vit.optim.schedules`.

    Attributes:
        name: `"constant"`, `"cosine"`, `"linear"`, `"rsqrt"` or `"steps"`.
        warmup_steps: Number of steps with a linear increase from 0.
        end: Learning rate at the end of `"cosine"` and `"linear"`.
        timescale: Time scale of `"rsqrt"`, in steps.
        cooldown_steps: Number of steps with a linear decay to 0 at the end.
        boundaries: Steps at which `"steps"` multiplies the rate by `factor`.
        factor: Factor at each boundary.

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
    """Optimizer and weight updates; see `keras_vit.optim` for the formulas.

    Attributes:
        name: `"sgd"`, `"lars"`, `"adamw"` or `"muon"`. `"muon"` updates the kernels of blocks with Muon, and all other
            weights with AdamW at the same rate.
        learning_rate: Peak learning rate.
        schedule: Learning-rate schedule.
        momentum: Momentum of `"sgd"`, `"lars"` and `"muon"`. 0 disables it.
        nesterov: Whether `"sgd"` or `"muon"` uses Nesterov momentum.
        beta1: Exponential decay rate of the first moment of `"adamw"`.
        beta2: Exponential decay rate of the second moment of `"adamw"`.
        epsilon: Added to the square root of the second moment of `"adamw"`.
        momentum_dtype: Dtype of the stored first moment, `"float32"` or `"bfloat16"`.
        weight_decay: Decoupled weight decay: each step subtracts `rate * weight_decay * weight`.
        weight_decay_mask: Regular expression for the paths of the weights that decay. None selects the kernels.
        clip_norm: Maximum global norm of the gradients. 0 disables clipping.
        accumulation_steps: Number of micro-batches per step (gradient accumulation), to save memory.
        layer_decay: Factor on the learning rate for each layer below the head. 1 disables layer-wise decay.
        ema_momentum: Momentum of the moving average of the weights and of the statistics of batch norms, which is
            evaluated and exported instead of the weights. 0 disables the average.

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
    ema_momentum: float = 0.0
