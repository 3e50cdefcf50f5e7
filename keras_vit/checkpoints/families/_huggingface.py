"""The types of Vision Transformers in transformers, and the names of their tensors.

References:
    - [transformers](https://github.com/huggingface/transformers), models `vit`, `deit`, `dinov2`,
      `dinov2_with_registers`, `dinov3_vit` and `siglip`
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Layout
from keras_vit.checkpoints.families import _torch
from keras_vit.checkpoints.rules import FIRST_AXIS, Rule, rule
from keras_vit.models.normalization import IMAGENET, SYMMETRIC, Normalization

# Names in the published files, which transformers wrote up to version 4. `_later` creates the names of later versions.
_VIT = _torch.Names(
    embedding="embeddings.patch_embeddings.projection",
    tokens={
        "embeddings.cls_token": "cls/cls",
        "embeddings.distillation_token": "dist/dist",
        "embeddings.position_embeddings": architecture.TABLE,
    },
    block="encoder.layer.{i}",
    norms=("layernorm_before", "layernorm_after"),
    heads=("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    out="attention.output.dense",
    mlp=("intermediate.dense", "output.dense"),
    encoder_norm="layernorm",
)
_SPLIT: dict[str, Any] = {
    "heads": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "out": "attention.o_proj",
}
_GATED = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_DINOV2 = dataclasses.replace(
    _VIT,
    tokens={
        "embeddings.cls_token": "cls/cls",
        "embeddings.register_tokens": "registers/registers",
        "embeddings.position_embeddings": architecture.TABLE,
    },
    norms=("norm1", "norm2"),
    mlp=("mlp.fc1", "mlp.fc2"),
    gated=("mlp.weights_in", "mlp.weights_out"),
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
)
_DINOV3 = dataclasses.replace(
    _DINOV2,
    embedding="embeddings.patch_embeddings",
    tokens={"embeddings.cls_token": "cls/cls", "embeddings.register_tokens": "registers/registers"},
    block="layer.{i}",
    mlp=("mlp.up_proj", "mlp.down_proj"),
    gated=_GATED,
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


def _later(names: _torch.Names, *blocks: str, **changes: Any) -> dict[str, _torch.Names]:
    """Return one style for each block name that later versions of transformers use."""
    return {f"later:{block}": dataclasses.replace(names, block=block, **changes) for block in blocks}


@dataclasses.dataclass(frozen=True)
class ModelType:
    """A type of model in transformers."""

    model_types: tuple[str, ...]  # values of `model_type` in `config.json`
    styles: Mapping[str, _torch.Names]  # names of the tensors, by naming scheme
    defaults: Mapping[str, Any]  # values of the configuration that a file may omit
    poolings: tuple[str, str]  # without and with a classifier
    classes: tuple[str, str]  # names of the classes without and with a classifier
    prefix: str  # of a model with a classifier
    always: Mapping[str, Any]  # arguments that all models have
    input_normalization: Normalization | None = None  # of all models; None if the models differ
    mark: str = ""  # part of a tensor's name that only this type has


# MSN and the encoder of MAE have the same architecture as ViT.
VIT = ModelType(
    model_types=("vit", "deit", "vit_msn", "vit_mae"),
    styles={"published": _VIT, **_later(_VIT, "layers.{i}", mlp=("mlp.fc1", "mlp.fc2"), **_SPLIT)},
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_attention_heads": 12},
    poolings=("token", "token"),
    classes=("ViTModel", "ViTForImageClassification"),
    prefix="vit.",
    always={"class_token": True},
)
DINOV2 = ModelType(
    model_types=("dinov2", "dinov2_with_registers"),
    styles={
        "published": _DINOV2,
        **_later(
            _DINOV2,
            *("encoder.layer.{i}", "layers.{i}", "encoder.layers.{i}", "layer.{i}"),  # the first name since version 5
            gated=_GATED,
            **_SPLIT,
        ),
    },
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-6, "num_attention_heads": 12},
    poolings=("token", "token+gap"),
    classes=("Dinov2Model", "Dinov2ForImageClassification"),
    prefix="dinov2.",
    always={"class_token": True, "layer_scale": True},
    input_normalization=IMAGENET,
    mark=".layer_scale1.lambda1",
)
DINOV3 = ModelType(
    model_types=("dinov3_vit",),
    styles={"published": _DINOV3, **_later(_DINOV3, "model.layer.{i}", "layers.{i}", "encoder.layer.{i}")},
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 6},
    poolings=("token", "token"),
    classes=("DINOv3ViTModel", ""),
    prefix="",
    always={
        **{"class_token": True, "layer_scale": True, "position_embedding": None, "output_projection": None},
        **{"qkv_bias": None, "query_bias": True, "key_bias": False, "value_bias": True, "proj_bias": True},
    },
    input_normalization=IMAGENET,
)
SIGLIP = ModelType(
    model_types=("siglip_vision_model", "siglip"),
    styles={"published": _SIGLIP},
    defaults={"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "num_attention_heads": 12},
    poolings=("map", "gap"),
    classes=("SiglipVisionModel", "SiglipForImageClassification"),
    prefix="vision_model.",
    always={},
    input_normalization=SYMMETRIC,
)


def rules(layout: Layout, model_type: ModelType) -> list[Rule]:
    """Return the rules of a layout. `layout.prefix` is the prefix of the body, such as `vit.`."""
    body, outer, head = layout.prefix, layout.outer, "classifier"
    result = _torch.model_rules(model_type.styles[layout.style], body)
    if model_type is VIT:
        # DeiT with a teacher has two classifiers. ViT, and DeiT without a teacher, have one classifier.
        head = "cls_classifier" if layout.position == "teacher" else head
        result += _torch.dense(f"{body}pooler.dense", "pre_logits")
        result += _torch.dense(f"{outer}distillation_classifier", "head_dist")
    elif model_type is SIGLIP:
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
    else:
        # Only pre-training uses the mask token. Reading ignores the token, and writing stores zeros for transformers.
        token, mask = f"{body}embeddings.cls_token", f"{body}embeddings.mask_token"
        result.insert(0, _torch.unused(token, mask, "cls/cls", 3 if model_type is DINOV3 else 2))
    return [*result, *_torch.dense(f"{outer}{head}", "head")]
