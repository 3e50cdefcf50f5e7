"""Masked autoencoders under the names of their authors, converted to `.safetensors`.

References:
    - [mae](https://github.com/facebookresearch/mae), `models_mae.py`
"""

from typing import Any

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout, variable_shapes
from keras_vit.checkpoints.families import _decoder, _timm, _torch
from keras_vit.checkpoints.families.family import Config, Family, Writing
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.rules import Rule, bind_stored
from keras_vit.models.normalization import IMAGENET

_EPSILON = 1e-6


def rules(layout: Layout) -> list[Rule]:
    """Return the rules of a layout: the encoder has timm's names."""
    body = layout.prefix
    blocks = _decoder.with_heads(_timm.block_rules(f"{body}decoder_blocks.{{i}}", _decoder.BLOCK), layout.decoder_heads)
    encoder = _timm.rules(Layout("timm", prefix=body))
    return [*encoder, *_decoder.rules(body, f"{body}decoder_pos_embed"), *blocks]


def recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return what `source` holds, or None if it is no masked autoencoder with its decoder."""
    names = set(source.tensors)
    body = next((p for p in ("", "model.", "module.") if f"{p}decoder_embed.weight" in names), None)
    if body is None or f"{body}patch_embed.proj.weight" not in names:
        return None
    noted: Any = source.metadata.get("arguments")
    noted = noted if isinstance(noted, dict) else {}
    width = (source.tensors[f"{body}decoder_embed.weight"].shape or (0,))[0]
    decoder_heads = _decoder.num_heads(width, noted.get("decoder_num_heads"), hints, source.path)
    layout = Layout("mae", prefix=body, decoder_heads=decoder_heads or 1)
    bindings, unexpected = bind_stored(rules(layout), source.tensors)
    checkpoint = Checkpoint(source, layout, bindings, shapes={}, unexpected=unexpected, kind="mae")
    width = (source.tensors[f"{body}patch_embed.proj.weight"].shape or (0,))[0]
    heads, checkpoint.assumed["num_heads"] = _torch.guess_heads(source, width, hints.wanted.get("num_heads"))
    checkpoint.shapes = variable_shapes(source, bindings, heads)
    checkpoint.arguments = {
        **architecture.infer_vit(checkpoint.shapes, heads, source.path),
        **_decoder.arguments(checkpoint.shapes, decoder_heads, source.path),
        "activation": "gelu",
        "layer_norm_epsilon": _EPSILON,
    }
    _decoder.settle(checkpoint)
    return checkpoint


def _layout(config: Config) -> Layout:
    return Layout("mae", decoder_heads=config["decoder_num_heads"])


FAMILY = Family(
    "mae",
    recognize,
    rules,
    kind="mae",
    resize_method="bicubic",
    input_normalization=IMAGENET,
    writing=Writing(
        values=_decoder.VALUES,
        layout=_layout,
        tensors="safetensors",
    ),
)
