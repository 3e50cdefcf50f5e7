"""Inspection of trained models: attention, embeddings and features as NumPy arrays, which `plots` draws."""

from keras_vit.inspection.attention import AttentionMaps, attention_maps, attention_rollout
from keras_vit.inspection.distance import attention_distance
from keras_vit.inspection.embeddings import embedding_filters, position_similarity
from keras_vit.inspection.features import LayerSimilarity, cka, layer_features, layer_similarity
from keras_vit.inspection.occlusion import occlusion_sensitivity
from keras_vit.inspection.relevance import gradient_attention
from keras_vit.inspection.token_layout import TokenLayout

__all__ = [
    "AttentionMaps",
    "LayerSimilarity",
    "TokenLayout",
    "attention_distance",
    "attention_maps",
    "attention_rollout",
    "cka",
    "embedding_filters",
    "gradient_attention",
    "layer_features",
    "layer_similarity",
    "occlusion_sensitivity",
    "position_similarity",
]
