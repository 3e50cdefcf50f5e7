"""Hugging Face's masked autoencoders, `ViTMAEForPreTraining`.

References:
    - [transformers](https://github.com/huggingface/transformers), model `vit_mae`
"""

from keras_vit.checkpoints import architecture
from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import _decoder, _torch, huggingface
from keras_vit.checkpoints.families.family import ANY, Config, Family, Files, Names, Writing
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.checkpoints.rules import Rule, bind_stored
from keras_vit.models.normalization import Normalization

_DECODER, _ENCODER = "decoder.", "vit."
# Names of the decoder's blocks: in published files (transformers up to 4), and in later versions.
_BLOCKS = ("decoder_layers", "decoder_encoder.layer")


def rules(layout: Layout) -> list[Rule]:
    """Return the rules of a layout, whose `position` is the name of the decoder's blocks."""
    encoder = huggingface.rules(Layout("huggingface", layout.style, prefix=_ENCODER))
    stored = f"{_DECODER}{layout.position}.{{i}}"
    blocks = huggingface.block_rules(stored, _decoder.BLOCK, layout.style)
    return [
        *encoder,
        *_decoder.rules(_DECODER, f"{_DECODER}decoder_pos_embed"),
        *_decoder.with_heads(blocks, layout.decoder_heads),
    ]


def recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    """Return what `source` holds, or None if it is no `ViTMAEForPreTraining`."""
    names, path = set(source.tensors), source.path
    projection = f"{_ENCODER}embeddings.patch_embeddings.projection.weight"
    embed = f"{_DECODER}decoder_embed.weight"
    if embed not in names or projection not in names:
        return None
    config = source.config or {}
    if not source.config:
        _torch.note_missing_config(path)
    if config.get("model_type") not in (None, "vit_mae"):
        raise CheckpointError(
            f"{path}: config.json has model_type={str(config['model_type'])[:40]!r}; its tensors are those of vit_mae."
        )
    width = (source.tensors[embed].shape or (0,))[0]
    decoder_heads = _decoder.num_heads(width, config.get("decoder_num_attention_heads"), hints, path)
    layout = Layout(
        "huggingface",
        style=huggingface.style_of(names, _ENCODER),
        position=next((b for b in _BLOCKS if any(n.startswith(f"{_DECODER}{b}.") for n in names)), _BLOCKS[0]),
        prefix=_ENCODER,
        decoder_heads=decoder_heads or 1,
    )
    bindings, unexpected = bind_stored(rules(layout), source.tensors)
    checkpoint = Checkpoint(source, layout, bindings, shapes={}, unexpected=unexpected, kind="mae")
    huggingface.infer(checkpoint, hints.wanted.get("num_heads"))
    found = checkpoint.arguments
    found |= _decoder.arguments(checkpoint.shapes, decoder_heads, path)
    stated = {
        "decoder_hidden_size": config.get("decoder_hidden_size"),
        "decoder_num_layers": config.get("decoder_num_hidden_layers"),
        "decoder_mlp_dim": config.get("decoder_intermediate_size") if found["decoder_num_layers"] else None,
    }
    architecture.check_stated(stated, found, f"{path}: config.json")
    ratio = config.get("mask_ratio")
    if isinstance(ratio, float) and 0 < ratio < 1:
        found["mask_ratio"] = ratio
    _decoder.settle(checkpoint)
    return checkpoint


def _documents(config: Config, layout: Layout, class_names: Names, normalization: Normalization) -> Files:
    """Return `config.json` and `preprocessor_config.json`."""
    documents = huggingface.documents(config, layout, class_names, normalization)
    own = {
        "architectures": ["ViTMAEForPreTraining"],
        "model_type": "vit_mae",
        "decoder_hidden_size": config["decoder_hidden_size"],
        "decoder_intermediate_size": config["decoder_mlp_dim"],
        "decoder_num_attention_heads": config["decoder_num_heads"],
        "decoder_num_hidden_layers": config["decoder_num_layers"],
        "mask_ratio": config["mask_ratio"],
    }
    return {**documents, "config.json": {**documents["config.json"], **own}}


def _layout(config: Config) -> Layout:
    heads = config["decoder_num_heads"]
    return Layout("huggingface", "published", position=_BLOCKS[0], prefix=_ENCODER, decoder_heads=heads)


FAMILY = Family(
    "huggingface",
    recognize,
    rules,
    kind="mae",
    resize_method="bicubic",
    writing=Writing(
        values={
            **_decoder.VALUES,
            "activation": _torch.WRITTEN_ACTIVATIONS,
            "layer_norm_epsilon": ANY,
            "qkv_bias": ANY,
        },
        conditions=(huggingface.SQUARE_PATCHES,),
        layout=_layout,
        tensors="safetensors",
        documents=_documents,
    ),
)
