"""Names and facts of Hugging Face's DINOv2, DINOv3 and SigLIP.

References:
    - [transformers](https://github.com/huggingface/transformers), models `dinov2`, `dinov2_with_registers`,
      `dinov3_vit` and `siglip`
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Layout
from keras_vit.checkpoints.families import _torch
from keras_vit.checkpoints.rules import FIRST_AXIS, Rule, rule
from keras_vit.models.normalization import IMAGENET, SYMMETRIC, Normalization

_MASK = "embeddings.mask_token"
# Names in published files, and in memory of later versions of transformers, which some files have, too.
_DINOV2 = _torch.Names(
    embedding="embeddings.patch_embeddings.projection",
    tokens={
        "embeddings.cls_token": "cls/cls",
        "embeddings.register_tokens": "registers/registers",
        "embeddings.position_embeddings": architecture.TABLE,
    },
    block="encoder.layer.{i}",
    norms=("norm1", "norm2"),
    heads=("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    out="attention.output.dense",
    mlp=("mlp.fc1", "mlp.fc2"),
    gated=("mlp.weights_in", "mlp.weights_out"),
    encoder_norm="layernorm",
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
)
_SPLIT: dict[str, Any] = {
    "heads": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "out": "attention.o_proj",
    "gated": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
}
_DINOV3 = dataclasses.replace(
    _DINOV2,
    embedding="embeddings.patch_embeddings",
    tokens={"embeddings.cls_token": "cls/cls", "embeddings.register_tokens": "registers/registers"},
    block="layer.{i}",
    mlp=("mlp.up_proj", "mlp.down_proj"),
    encoder_norm="norm",
    **_SPLIT,
)
_SIGLIP = _torch.Names(
    embedding="embeddings.patch_embedding",
    tokens={},
    block="encoder.layers.{i}",
    norms=("layer_norm1", "layer_norm2"),
    heads=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    out="self_attn.out_proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    encoder_norm="post_layernorm",
)


def _blocks(names: _torch.Names, *blocks: str, **changes: Any) -> dict[str, _torch.Names]:
    """Return the later styles of a type, whose names of blocks vary between versions."""
    return {f"later:{block}": dataclasses.replace(names, block=block, **changes) for block in blocks}


@dataclasses.dataclass(frozen=True)
class Tower:
    """Type of models in transformers."""

    model_types: tuple[str, ...]  # in `config.json`
    styles: Mapping[str, _torch.Names]
    defaults: Mapping[str, Any]  # of the configuration's class, which files leave out
    poolings: tuple[str, str]  # without and with a classifier
    classes: tuple[str, str]  # names, likewise
    prefix: str  # of a model with a classifier
    input_normalization: Normalization
    resize_method: str = "bicubic"
    mark: str = ""  # name of a part of a block that only this type has


DINOV2 = Tower(
    model_types=("dinov2", "dinov2_with_registers"),
    styles={
        "published": _DINOV2,
        **_blocks(_DINOV2, "layers.{i}", "encoder.layer.{i}", "encoder.layers.{i}", "layer.{i}", **_SPLIT),
    },
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-6, "num_attention_heads": 12},
    poolings=("token", "token+gap"),
    classes=("Dinov2Model", "Dinov2ForImageClassification"),
    prefix="dinov2.",
    input_normalization=IMAGENET,
    mark=".layer_scale1.lambda1",
)
DINOV3 = Tower(
    model_types=("dinov3_vit",),
    styles={"published": _DINOV3, **_blocks(_DINOV3, "model.layer.{i}", "layers.{i}", "encoder.layer.{i}")},
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 6},
    poolings=("token", "token"),
    classes=("DINOv3ViTModel", ""),
    prefix="",
    input_normalization=IMAGENET,
)
SIGLIP = Tower(
    model_types=("siglip_vision_model", "siglip"),
    styles={"published": _SIGLIP},
    defaults={"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "num_attention_heads": 12},
    poolings=("map", "gap"),
    classes=("SiglipVisionModel", "SiglipForImageClassification"),
    prefix="vision_model.",
    input_normalization=SYMMETRIC,
)


def rules(layout: Layout, tower: Tower) -> list[Rule]:
    """Return the rules of a layout."""
    body, names = layout.prefix, tower.styles[layout.style]
    result = []
    if "embeddings.cls_token" in names.tokens:
        # The mask token is for pre-training. It is read as nothing, and written as zeros, which transformers expects.
        axes = 3 if tower is DINOV3 else 2
        result.append(_torch.unused(f"{body}embeddings.cls_token", f"{body}{_MASK}", "cls/cls", axes))
    result += [*_torch.model_rules(names, body), *_torch.dense("classifier", "head")]
    if tower is SIGLIP:
        pool = f"{body}head"
        attention = [f"MAPHead_0/{_torch.ATTENTION}/{part}" for part in ("query", "key", "value")]
        result += [
            rule(f"{body}embeddings.position_embedding.weight", architecture.TABLE, FIRST_AXIS),
            rule(f"{pool}.probe", "MAPHead_0/probe"),
            *_torch.fused_heads(f"{pool}.attention.in_proj", attention, ("_weight", "_bias")),
            *_torch.heads_out(f"{pool}.attention.out_proj", f"MAPHead_0/{_torch.ATTENTION}/out"),
            *_torch.norm(f"{pool}.layernorm", "MAPHead_0/LayerNorm_0"),
            *_torch.dense(f"{pool}.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
            *_torch.dense(f"{pool}.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
        ]
    return result
