"""Losses, schedules, optimizers and weight updates, as pure functions of tensors on every backend."""

from keras_vit.optim.config import Optim, Schedule
from keras_vit.optim.groups import layer_multipliers
from keras_vit.optim.losses import cross_entropy, is_correct, smooth_labels
from keras_vit.optim.optimizers import LARS, AdamW, Momentum, Muon, create_optimizer, global_norm
from keras_vit.optim.schedules import create_schedule
from keras_vit.optim.update import UpdateRule, clip_by_global_norm, update_average

__all__ = [
    "LARS",
    "AdamW",
    "Momentum",
    "Muon",
    "Optim",
    "Schedule",
    "UpdateRule",
    "clip_by_global_norm",
    "create_optimizer",
    "create_schedule",
    "cross_entropy",
    "global_norm",
    "is_correct",
    "layer_multipliers",
    "smooth_labels",
    "update_average",
]
