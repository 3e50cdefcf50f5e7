"""Creation of blocks and their layers from a configuration."""

import contextlib
import inspect
from typing import Any

import keras

from keras_vit.layers import EncoderBlock, MlpBlock, SelfAttention, SwiGLU
from keras_vit.layers.normalization import NORMS
from keras_vit.models.vit_config import ViTConfig

ATTENTION = "MultiHeadDotProductAttention_0"  # the reference's name


def encoder_block(
    config: ViTConfig,
    policy: keras.DTypePolicy | None,
    name: str,
    drop_path_rate: float = 0.0,
    relative_positions: int | None = None,
) -> keras.layers.Layer:
    """Create a block of the encoder, or of a decoder if `config` is the decoder's configuration."""
    attention = keras.saving.get_registered_object(config.attention)(
        config.num_heads,
        dtype=policy,
        name=ATTENTION,
        **_changed(
            SelfAttention,
            dropout_rate=config.attention_dropout_rate,
            use_bias=config.qkv_bias,
            relative_positions=relative_positions,
            chunk_size=config.attention_chunk_size,
            head_dim=config.head_dim,
            output_projection=config.output_projection,
            qk_norm=config.norm if config.qk_norm else None,
            layer_norm_epsilon=config.layer_norm_epsilon,
        ),
    )
    options = _changed(
        EncoderBlock,
        dropout_rate=config.dropout_rate,
        drop_path_rate=drop_path_rate,
        layer_norm_epsilon=config.layer_norm_epsilon,
        layer_scale=config.layer_scale,
        norm_type=config.norm,
    )
    mlp = mlp_layer(config, policy, config.dropout_rate)
    remat = keras.RematScope("list_of_layers", layer_names=[name])
    with remat if config.remat == "blocks" else contextlib.nullcontext():
        create = keras.saving.get_registered_object(config.block)
        block = create(attention, mlp, dtype=policy, name=name, **options)
    if config.remat == "blocks" and not isinstance(block, EncoderBlock):
        raise ValueError(
            "remat='blocks' needs a block that derives from keras_vit.layers.EncoderBlock, which repeats the dropout. "
            f"Received: block={config.block!r}."
        )
    block.is_block = True  # for layer-wise learning rate decay, `adapt` and `feature_extractor`
    return block


def _changed(layer: type, **arguments: Any) -> dict[str, Any]:
    """Return the arguments that differ from the defaults of a layer, so that other layers need not have them all."""
    parameters = inspect.signature(layer).parameters
    return {name: value for name, value in arguments.items() if value != parameters[name].default}


def mlp_layer(config: ViTConfig, policy: keras.DTypePolicy | None, dropout_rate: float = 0.0) -> MlpBlock | SwiGLU:
    """Create the MLP of a block or of attention pooling."""
    if config.mlp == "swiglu":
        return SwiGLU(config.mlp_dim, dropout_rate, dtype=policy, name="SwiGLU_0")
    return MlpBlock(config.mlp_dim, dropout_rate, config.activation, dtype=policy, name="MlpBlock_0")


def norm_layer(config: ViTConfig, policy: keras.DTypePolicy | None, name: str) -> keras.layers.Layer:
    """Create a normalization layer of the encoder."""
    return NORMS[config.norm](config.layer_norm_epsilon, dtype=policy, name=name)
