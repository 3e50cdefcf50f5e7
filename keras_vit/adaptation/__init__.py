"""Adaptation of a trained model to new data: the choice of what is trained, and LoRA."""

from keras_vit.adaptation.adapt import adapt, merge_adapter, parse

__all__ = ["adapt", "merge_adapter", "parse"]
