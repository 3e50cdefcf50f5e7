"""Adaptation of a trained model to new data: the choice of trained weights, LoRA, and adapter files."""

from keras_vit.adaptation.adapt import adapt, merge_adapter, parse_adapt
from keras_vit.adaptation.adapter_files import load_adapter, save_adapter

__all__ = ["adapt", "load_adapter", "merge_adapter", "parse_adapt", "save_adapter"]
