"""Recognises Hugging Face's ViT and DeiT (DINO's ViT included), and knows their names.

References:
    - [transformers](https://github.com/huggingface/transformers), models `vit` and `deit`
"""

import re
from typing import Any

from keras_vit.checkpoints import architecture, torch_names
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.grid import Hints
from keras_vit.checkpoints.layout import Checkpoint, Layout, variable_shapes
from keras_vit.checkpoints.rules import Rule, bind_stored, rule
from keras_vit.checkpoints.source import TensorSource
from keras_vit.checkpoints.torch_names import ATTENTION

_ANCHOR = re.compile(r"(?<![^.])embeddings\.patch_embeddings\.projection\.weight$")
# MSN trained the same model.
_MODEL_TYPES = ("vit", "deit", "vit_msn")
# Names of a block's parts: as published (transformers up to 4), and as later versions name them in memory.
_PUBLISHED = {
    "block": "encoder.layer.{i}",
    "heads": {
        "query": "attention.attention.query",
        "key": "attention.attention.key",
        "value": "attention.attention.value",
    },
    "out": "attention.output.dense",
    "mlp": ("intermediate.dense", "output.dense"),
}
_LATER = {
    "block": "layers.{i}",
    "heads": {"query": "attention.q_proj", "key": "attention.k_proj", "value": "attention.v_proj"},
    "out": "attention.o_proj",
    "mlp": ("mlp.fc1", "mlp.fc2"),
}
_STYLES = {"published": _PUBLISHED, "later": _LATER}


def rules(layout: Layout) -> list[Rule]:
    """Returns the rules of a layout, whose `prefix` is that of the body, such as `vit.`."""
    body, names = layout.prefix, _STYLES[layout.style]
    block, attention = f"{body}{names['block']}", f"encoderblock_{{i}}/{ATTENTION}"
    result = [
        rule(f"{body}embeddings.cls_token", "cls/cls"),
        rule(f"{body}embeddings.distillation_token", "dist/dist"),
        rule(f"{body}embeddings.position_embeddings", architecture.TABLE),
        *torch_names.conv(f"{body}embeddings.patch_embeddings.projection", "embedding"),
        *torch_names.norm(f"{block}.layernorm_before", "encoderblock_{i}/LayerNorm_0"),
        *torch_names.norm(f"{block}.layernorm_after", "encoderblock_{i}/LayerNorm_1"),
        *torch_names.heads_out(f"{block}.{names['out']}", f"{attention}/out"),
        *torch_names.norm(f"{body}layernorm", "encoder_norm"),
        *torch_names.dense(f"{body}pooler.dense", "pre_logits"),
    ]
    for part, stored in names["heads"].items():
        result += torch_names.heads_in(f"{block}.{stored}", f"{attention}/{part}")
    for index, stored in enumerate(names["mlp"]):
        result += torch_names.dense(f"{block}.{stored}", f"encoderblock_{{i}}/MlpBlock_0/Dense_{index}")
    # DeiT with a teacher has two classifiers, DeiT without and ViT have one.
    return result + [
        *torch_names.dense("distillation_classifier", "head_dist"),
        *torch_names.dense("cls_classifier" if layout.position == "teacher" else "classifier", "head"),
    ]


def recognise(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return what `source` holds, or None if it is no Hugging Face ViT or DeiT."""
    prefixes = {name[: match.start()] for name in source.tensors if (match := _ANCHOR.search(name))}
    if len(prefixes) != 1:
        return None
    names, body = set(source.tensors), prefixes.pop()
    layout = Layout(
        "huggingface",
        style="published" if any(name.startswith(f"{body}encoder.layer.") for name in names) else "later",
        position="teacher" if "cls_classifier.weight" in names else "",
        prefix=body,
    )
    # The token that masked-image modelling puts in is no part of the model, and no classifier reads the pooler.
    ignored = {f"{body}embeddings.mask_token"}
    if {"classifier.weight", "cls_classifier.weight"} & names:
        ignored |= {f"{body}pooler.dense.weight", f"{body}pooler.dense.bias"}
    bindings, unexpected = bind_stored(rules(layout), [name for name in source.tensors if name not in ignored])
    checkpoint = Checkpoint(
        source, layout, bindings, shapes={}, arguments={}, unexpected=unexpected, ignored=sorted(ignored & names)
    )
    _infer(checkpoint, hints.wanted.get("num_heads"))
    return checkpoint


def _infer(checkpoint: Checkpoint, num_heads: int | None) -> None:
    source = checkpoint.source
    config, path = source.config or {}, source.path
    if not source.config:
        torch_names.note_missing_config(path)
    projection = next(name for name in source.tensors if _ANCHOR.search(name))
    width = (source.tensors[projection].shape or (0,))[0]
    if "num_attention_heads" in config:
        heads = torch_names.positive(config["num_attention_heads"], "num_attention_heads", path)
    else:
        heads, checkpoint.assumed["num_heads"] = torch_names.guess_heads(source, width, num_heads)
    checkpoint.shapes = variable_shapes(source, checkpoint.bindings, heads)
    found = architecture.infer_vit(checkpoint.shapes, heads, path)
    if found["distillation_token"] and "head_dist/kernel" not in checkpoint.shapes:
        found["distillation_token"] = "unused"  # carried through the blocks, read by nothing
    found["activation"] = torch_names.activation(config.get("hidden_act", "gelu"), path)
    found["layer_norm_epsilon"] = _epsilon(config.get("layer_norm_eps", 1e-12), path)
    for argument, key in (("activation", "hidden_act"), ("layer_norm_epsilon", "layer_norm_eps")):
        if key not in config:
            checkpoint.assumed[argument] = f"the default of {key}"
    if "pre_logits/kernel" in checkpoint.shapes and config.get("pooler_act", "tanh") != "tanh":
        raise CheckpointError(
            f"{path}: its pooler's activation is {str(config['pooler_act'])[:40]!r}; only tanh is known."
        )
    _check_config(config, found, body=checkpoint.layout.prefix, path=path)
    if "image_size" in config:
        found["image_size"] = config["image_size"]
    checkpoint.arguments = found
    labels = config.get("id2label")
    if isinstance(labels, dict) and found["include_top"]:
        if len(labels) != found["classes"]:
            raise CheckpointError(f"{path}: config.json names {len(labels)} classes, the head has {found['classes']}.")
        ordered = [labels.get(str(index)) for index in range(len(labels))]
        if all(isinstance(label, str) for label in ordered):
            checkpoint.class_names = tuple(ordered)


def _check_config(config: dict[str, Any], found: dict[str, Any], body: str, path: str) -> None:
    """Refuse tensors that are not those of the configuration."""
    if config.get("model_type") not in (None, *_MODEL_TYPES):
        raise CheckpointError(
            f"{path}: config.json has model_type={str(config['model_type'])[:40]!r}. Known: {', '.join(_MODEL_TYPES)}."
        )
    stated = {
        "hidden_size": config.get("hidden_size"),
        "num_layers": config.get("num_hidden_layers"),
        "channels": config.get("num_channels"),
    }
    patch = config.get("patch_size")
    if patch is not None:
        size = architecture.pair(patch)
        stated["patch_size"] = architecture.plain_pair(size) if size else patch
    if found["num_layers"]:
        stated |= {"mlp_dim": config.get("intermediate_size"), "qkv_bias": config.get("qkv_bias")}
    architecture.check_stated(stated, found, f"{path}: config.json")
    architectures = config.get("architectures")
    classifier = isinstance(architectures, list) and "ForImageClassification" in str(architectures[:1])
    if classifier and body and not found["include_top"]:  # without a prefix it is the body alone, on purpose
        raise CheckpointError(f"{path} has no classifier, though config.json says {architectures[0]}. Fetch it again.")


def _epsilon(value: object, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value < 1.0:
        raise CheckpointError(
            f"{path}: the configuration's layer_norm_eps must be a small number. Received: {str(value)[:60]}."
        )
    return float(value)
