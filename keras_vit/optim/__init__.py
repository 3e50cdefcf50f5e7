"""Losses, schedules, optimizers and weight updates, as pure functions of tensors on every backend."""

from keras_vit.optim.config import Optim, Schedule
from keras_vit.optim.losses import cross_entropy, smooth_labels
from keras_vit.optim.losses import is_correct as is_correct
from keras_vit.optim.optimizers import LARS, AdamW, Momentum, Muon, create_optimizer
from keras_vit.optim.optimizers import global_norm as global_norm
from keras_vit.optim.schedules import create_schedule
from keras_vit.optim.update import UpdateRule as UpdateRule
from keras_vit.optim.update import update_average

__all__ = [
    "LARS",
    "AdamW",
    "Momentum",
    "Muon",
    "Optim",
    "Schedule",
    "create_optimizer",
    "create_schedule",
    "cross_entropy",
    "smooth_labels",
    "update_average",
]
