"""Adaptation of a trained model to new data: the choice of trained weights, LoRA, and adapter files."""

from keras_vit.adaptation.adapt import adapt as adapt
from keras_vit.adaptation.adapt import merge_adapter as merge_adapter
from keras_vit.adaptation.adapt import parse_adapt as parse_adapt
from keras_vit.adaptation.adapter_files import load_adapter as load_adapter
from keras_vit.adaptation.adapter_files import save_adapter as save_adapter
