"""Masked autoencoders including the decoder, with the authors' names or as Hugging Face's `ViTMAEForPreTraining`.

References:
    - [mae](https://github.com/facebookresearch/mae), `models_mae.py`, converted to `.safetensors`
    - [transformers](https://github.com/huggingface/transformers), model `vit_mae`
"""

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import ANY, Checkpoint, Hints, Layout
from keras_vit.checkpoints.families import _huggingface, _timm, _torch, huggingface, huggingface_reading
from keras_vit.checkpoints.families._huggingface import VIT
from keras_vit.checkpoints.families.family import Config, Family, Files, Names, Writing
from keras_vit.checkpoints.formats.tensors import CheckpointError, TensorSource
from keras_vit.checkpoints.rules import Rule, Transform, rule
from keras_vit.models.normalization import IMAGENET, Normalization

_BLOCK = "decoder_block_{i}"
_HEADS = 16  # of all published decoders
_DECODER, _ENCODER = "decoder.", "vit."  # Hugging Face's prefixes
# Hugging Face's names of the decoder's blocks: in published files (transformers up to version 4), and in later
# versions.
_BLOCKS = ("decoder_layers", "decoder_encoder.layer")
# Fields of Hugging Face's configuration that can be inferred from the decoder's tensors, and this package's arguments.
_SHOWN = {
    "decoder_hidden_size": "decoder_hidden_size",
    "decoder_num_hidden_layers": "decoder_num_layers",
    "decoder_intermediate_size": "decoder_mlp_dim",
}


def rules(layout: Layout) -> list[Rule]:
    """Return the rules of the authors' layout. The encoder has timm's names."""
    body = layout.prefix
    blocks = _torch.block_rules(_timm.NAMES, f"{body}decoder_blocks.{{i}}", _BLOCK)
    return _timm.rules(Layout("timm", prefix=body)) + _decoder_rules(body, f"{body}decoder_pos_embed", blocks, layout)


def _huggingface_rules(layout: Layout) -> list[Rule]:
    """Return the rules of Hugging Face's layout, whose `position` is the name of the decoder's blocks."""
    encoder = _huggingface.rules(Layout("huggingface", layout.style, prefix=layout.prefix), VIT)
    decoder = layout.prefix.removesuffix(_ENCODER) + _DECODER
    blocks = _torch.block_rules(VIT.styles[layout.style], f"{decoder}{layout.position}.{{i}}", _BLOCK)
    return encoder + _decoder_rules(decoder, f"{decoder}decoder_pos_embed", blocks, layout)


def _decoder_rules(prefix: str, table: str, blocks: Iterable[Rule], layout: Layout) -> list[Rule]:
    """Return the rules of a decoder, which may have a different number of heads than the encoder."""

    def fixed(transform: Transform) -> Transform:
        return Transform(lambda arrays, _: transform.read(arrays, layout.decoder_heads), transform.write)

    return [
        rule(f"{prefix}mask_token", "mask_token/mask_token"),
        rule(table, "decoder_posembed/pos_embedding"),
        *_torch.dense(f"{prefix}decoder_embed", "decoder_embed"),
        *_torch.norm(f"{prefix}decoder_norm", "decoder_norm"),
        *_torch.dense(f"{prefix}decoder_pred", "decoder_pred"),
        *(Rule(item.stored, item.variables, fixed(item.transform)) for item in blocks),
    ]


def _num_heads(source: TensorSource, embed: str, stated: Any, hints: Hints) -> int | None:
    """Return the number of heads of a decoder whose embedding is `embed`, or None if the number is unknown."""
    width = (source.tensors[embed].shape or (0,))[0]
    heads = stated if stated is not None else hints.wanted.get("decoder_num_heads")
    if heads is None:
        return _HEADS if width % _HEADS == 0 else None
    if type(heads) is not int or heads < 1 or width % heads:
        raise CheckpointError(f"{source.path}: decoder_num_heads must divide {width}. Received: {str(heads)[:20]}.")
    return heads


def _finish(checkpoint: Checkpoint, heads: int | None) -> Checkpoint:
    """Add the decoder's arguments, and accept encoders with any pooling and head."""
    checkpoint.arguments |= architecture.infer_decoder(checkpoint.shapes, heads, checkpoint.path)
    checkpoint.arguments["pooling"] = "token"
    checkpoint.allow_any_head()
    return checkpoint


def _recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return the checkpoint in a file with the authors' names, or None for other files."""
    anchor = "patch_embed.proj.weight"
    body = _torch.find_body(source, anchor, hints)
    if body is None or f"{body}decoder_embed.weight" not in source.tensors:
        return None
    stated = source.metadata.get("arguments", {}).get("decoder_num_heads")
    heads = _num_heads(source, f"{body}decoder_embed.weight", stated, hints)
    layout = Layout("mae", prefix=body, decoder_heads=heads or 1)
    checkpoint = _torch.bind(source, layout, rules(layout), hints, f"{body}{anchor}", kind="mae")
    architecture.check_type(source, checkpoint.arguments, {"class_token": True})
    checkpoint.arguments |= {"activation": "gelu", "layer_norm_epsilon": 1e-6}
    return _finish(checkpoint, heads)


def _recognize_huggingface(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return the checkpoint in a file with Hugging Face's names, or None for other files."""
    config = source.config or {}
    body = _torch.find_body(source, f"{_ENCODER}{VIT.styles['published'].embedding}.weight", hints)
    embed = f"{body}{_DECODER}decoder_embed.weight"
    if body is None or embed not in source.tensors:
        return None
    heads = _num_heads(source, embed, config.get("decoder_num_attention_heads"), hints)
    layouts = [
        Layout("huggingface", style, block, prefix=body + _ENCODER, decoder_heads=heads or 1)
        for style, block in itertools.product(VIT.styles, _BLOCKS)
    ]
    layout = huggingface_reading.nearest(source, layouts, _huggingface_rules)
    own = dataclasses.replace(VIT, model_types=("vit_mae",))
    checkpoint = huggingface_reading.bind(source, layout, _huggingface_rules(layout), hints, own, config, kind="mae")
    found = _finish(checkpoint, heads).arguments
    stated = {argument: config.get(field) for field, argument in _SHOWN.items()}
    architecture.check_stated(stated, found, f"{source.path}: config.json")
    ratio = config.get("mask_ratio")
    if isinstance(ratio, float) and 0 < ratio < 1:
        found["mask_ratio"] = ratio
    return checkpoint


def _documents(config: Config, layout: Layout, class_names: Names, normalization: Normalization) -> Files:
    """Return Hugging Face's `config.json` and `preprocessor_config.json`."""
    documents = huggingface.documents(config, layout, class_names, normalization, VIT)
    own = {
        "architectures": ["ViTMAEForPreTraining"],
        "model_type": "vit_mae",
        "decoder_num_attention_heads": config["decoder_num_heads"],
        "mask_ratio": config["mask_ratio"],
        **{field: config[argument] for field, argument in _SHOWN.items()},
    }
    return {**documents, "config.json": {**documents["config.json"], **own}}


FAMILIES = (
    Family(
        "huggingface",
        _recognize_huggingface,
        _huggingface_rules,
        kind="mae",
        resize_method="bicubic",
        writing=Writing(
            values={
                "activation": _torch.WRITTEN_ACTIVATIONS,
                **dict.fromkeys(("pooling", "layer_norm_epsilon", "qkv_bias"), ANY),
            },
            limits=huggingface.square_patches,
            layout=lambda config: Layout(
                "huggingface", "published", _BLOCKS[0], prefix=_ENCODER, decoder_heads=config["decoder_num_heads"]
            ),
            tensors="safetensors",
            documents=_documents,
        ),
    ),
    Family(
        "mae",
        _recognize,
        rules,
        kind="mae",
        resize_method="bicubic",
        input_normalization=IMAGENET,
        writing=Writing(
            values={"pooling": ANY},
            layout=lambda config: Layout("mae", decoder_heads=config["decoder_num_heads"]),
            tensors="safetensors",
        ),
    ),
)
