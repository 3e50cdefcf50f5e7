"""Heads of models, which map the encoder's tokens and the patch grid, or features, to the output."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.layers import Dense, MAPHead, PatchMeanPooling, SelfAttention, TokenPooling, UnflattenGrid
from keras_vit.models import parts
from keras_vit.models.config import Config
from keras_vit.models.vit_config import ViTConfig


def head_layer(config: Config, policy: keras.DTypePolicy, name: str = "head") -> keras.layers.Layer:
    """Create the classification layer. As in the reference, its kernel is initialized to zeros."""
    return Dense(
        config.classes,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(config.head_bias),
        dtype=policy,
        name=name,
    )


def batch_norm(policy: keras.DTypePolicy, name: str) -> keras.layers.Layer:
    """Create a batch norm without scale and offset, with PyTorch's momentum and MAE's epsilon."""
    return keras.layers.BatchNormalization(
        momentum=0.9, epsilon=1e-6, center=False, scale=False, dtype=policy, name=name
    )


def predictions(config: Config, logits: keras.KerasTensor) -> keras.KerasTensor:
    """Return the output of a model: the logits, or the result of `classifier_activation` in float32."""
    if config.classifier_activation is None:
        return logits
    return keras.layers.Activation(config.classifier_activation, dtype="float32", name="predictions")(logits)


_LAYERS = ("MAPHead_0", "fc_norm", "pre_logits", "head_norm", "head", "head_dist")  # layers of `Head` with weights


class Head:
    """Pooling and classification, or only pooling with `include_top=False`. `pooling=None` keeps all tokens.

    `blocks` are the indices of the blocks whose tokens the head receives as a list. None means the last block.
    """

    blocks: Sequence[int] | None = None

    def __init__(self, config: ViTConfig, policy: keras.DTypePolicy | None):
        self.config, self.policy = config, policy

    def __call__(self, tokens: Any, grid: Any) -> keras.KerasTensor:
        """Return the output for tokens `[B, T, D]`. `grid`, `[B, h, w, ...]`, has the shape of the patch grid."""
        config, vectors = self.config, self._pooled(tokens)
        if config.norm_after_pooling:
            vectors = [parts.norm_layer(config, self.policy, "fc_norm")(x) for x in vectors]
        if config.representation_size is not None:
            shared: Any = {"kernel_initializer": "lecun_normal", "dtype": self.policy, "name": "pre_logits"}
            pre_logits = Dense(config.representation_size, activation="tanh", **shared)
            vectors = [pre_logits(x) for x in vectors]
        if not config.include_top:
            return self._average(vectors)
        if config.head_norm:
            vectors = [batch_norm(self.policy, "head_norm")(x) for x in vectors]
        names = ("head", "head_dist")[: len(vectors)]
        logits = [head_layer(config, self.policy, name)(x) for name, x in zip(names, vectors, strict=True)]
        return predictions(config, self._average(logits))

    def _pooled(self, x):
        """Return the inputs `[B, D]` of the heads: one tensor, or two tensors for a distilled model."""
        config, shared = self.config, {"dtype": self.policy}
        others = config.num_prefix_tokens + config.num_registers
        if config.distillation_token is True:  # one head for each token
            return [TokenPooling(0, name="pool", **shared)(x), TokenPooling(1, name="pool_dist", **shared)(x)]
        if config.pooling == "token":
            return [TokenPooling(0, name="pool", **shared)(x)]
        if config.pooling == "gap":
            return [PatchMeanPooling(0 if config.pool_prefix_tokens else others, name="pool", **shared)(x)]
        if config.pooling == "token+gap":
            token = TokenPooling(0, name="pool_token", **shared)(x)
            mean = PatchMeanPooling(others, name="pool_patches", **shared)(x)
            return [keras.layers.Concatenate(name="pool", **shared)([token, mean])]  # [B, 2 D]
        if config.pooling == "map":
            attention = SelfAttention(config.num_heads, dtype=self.policy, name=parts.ATTENTION)
            mlp = parts.mlp_layer(config, self.policy)
            return [MAPHead(attention, mlp, config.layer_norm_epsilon, config.norm, name="MAPHead_0", **shared)(x)]
        return [x]

    def _average(self, tensors):
        return tensors[0] if len(tensors) == 1 else keras.layers.Average(name="average", dtype=self.policy)(tensors)


class GivenHead(Head):
    """Head that calls the custom Keras layer passed to the model as `head`."""

    def __init__(self, config: ViTConfig, policy: keras.DTypePolicy | None):
        super().__init__(config, policy)
        self.layer: Any = config.head
        self.blocks = getattr(self.layer, "blocks", None)

    def __call__(self, tokens: Any, grid: Any) -> keras.KerasTensor:
        config = self.config
        to_map = UnflattenGrid(config.num_prefix_tokens + config.num_registers, name="patch_map", dtype=self.policy)
        patches = keras.tree.map_structure(lambda x: to_map(x, grid), tokens)  # [B, h, w, D]
        return predictions(config, self.layer(tokens, grid=patches))


def create(config: ViTConfig, policy: keras.DTypePolicy | None) -> Head:
    """Create the head of a configuration."""
    return (Head if config.head is None else GivenHead)(config, policy)


def variable_prefixes(given: keras.layers.Layer | None = None) -> tuple[str, ...]:
    """Return the prefixes of the variable paths of a custom head, or of the default head if `given` is None."""
    return tuple(f"{name}/" for name in (_LAYERS if given is None else (given.name,)))
