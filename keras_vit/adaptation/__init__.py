"""Adaptation of pretrained models: LoRA, and its files."""

from keras_vit.adaptation.adapter_files import load_adapter, save_adapter

__all__ = ["load_adapter", "save_adapter"]
