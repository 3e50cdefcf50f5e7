"""Published variants, one line each, and their names. Needs neither Keras nor NumPy.

Sources of the sizes: table 1 of [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), section 3 of
[How to train your ViT?](https://arxiv.org/abs/2106.10270), table 2 of
[Scaling Vision Transformers](https://arxiv.org/abs/2106.04560), [DINOv2](https://arxiv.org/abs/2304.07193),
[DINOv3](https://arxiv.org/abs/2508.10104), [SigLIP](https://arxiv.org/abs/2303.15343) and
[Big Transfer](https://arxiv.org/abs/1912.11370).
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Literal

from keras_vit.util import checks

Size = int | tuple[int, int]


@dataclasses.dataclass(frozen=True)
class ViTVariant:
    """Sizes of a Vision Transformer.

    Args:
        patch_size: Size of a patch, an integer or (height, width): in pixels, or for hybrids in cells of the ResNet's
            feature map.
        hidden_size: Width `D` of the tokens.
        num_layers: Number of encoder blocks.
        num_heads: Number of attention heads per block, which must divide `hidden_size` unless `head_dim` is given.
        mlp_dim: Width of the hidden layers of the MLPs.
        resnet_blocks: Number of units of each stage of a hybrid's ResNet, `()` for a ResNet with only a root, or None
            for a model without a ResNet.
    """

    patch_size: Size = 16
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    mlp_dim: int = 3072
    resnet_blocks: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True)
class GatedViTVariant(ViTVariant):
    """Sizes of a Vision Transformer with gated MLPs."""

    mlp: Literal["swiglu"] = "swiglu"


@dataclasses.dataclass(frozen=True)
class BiTVariant:
    """Sizes of a BiT ResNet.

    Args:
        block_sizes: Number of units of each stage.
        width_factor: Multiplier of the channels of a standard ResNet.
    """

    block_sizes: Sequence[int] = (3, 4, 6, 3)
    width_factor: int = 1


_R50, _R101, _R152 = (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3)

VIT: dict[str, ViTVariant] = {
    "ViT-Ti/16": ViTVariant(16, 192, 12, 3, 768),
    "ViT-S/32": ViTVariant(32, 384, 12, 6, 1536),
    "ViT-S/16": ViTVariant(16, 384, 12, 6, 1536),
    "ViT-B/32": ViTVariant(32, 768, 12, 12, 3072),
    "ViT-B/16": ViTVariant(16, 768, 12, 12, 3072),
    "ViT-B/8": ViTVariant(8, 768, 12, 12, 3072),
    "ViT-L/32": ViTVariant(32, 1024, 24, 16, 4096),
    "ViT-L/16": ViTVariant(16, 1024, 24, 16, 4096),
    "ViT-H/14": ViTVariant(14, 1280, 32, 16, 5120),
    "ViT-g/14": ViTVariant(14, 1408, 40, 16, 6144),
    "ViT-G/14": ViTVariant(14, 1664, 48, 16, 8192),
    # DINOv2 (its largest model differs from ViT-g/14), DINOv3 and SigLIP.
    "ViT-S/14": ViTVariant(14, 384, 12, 6, 1536),
    "ViT-B/14": ViTVariant(14, 768, 12, 12, 3072),
    "ViT-L/14": ViTVariant(14, 1024, 24, 16, 4096),
    "ViT-giant2/14": GatedViTVariant(14, 1536, 40, 24, 4096),
    "ViT-S+/16": GatedViTVariant(16, 384, 12, 6, 1536),
    "ViT-H+/16": GatedViTVariant(16, 1280, 32, 20, 5120),
    "ViT-So400m/14": ViTVariant(14, 1152, 27, 16, 4304),
    "ViT-So400m/16": ViTVariant(16, 1152, 27, 16, 4304),
    # Without stages, the ResNet has stride 4. Patches of 8 cells therefore give "R+Ti/16" a stride of 32 pixels.
    "R+ViT-Ti/16": ViTVariant(8, 192, 12, 3, 768, ()),
    "R26+ViT-S/32": ViTVariant(1, 384, 12, 6, 1536, (2, 2, 2, 2)),
    "R26+ViT-B/32": ViTVariant(1, 768, 12, 12, 3072, (2, 2, 2, 2)),
    "R50+ViT-B/16": ViTVariant(1, 768, 12, 12, 3072, (3, 4, 9)),
    "R50+ViT-L/32": ViTVariant(1, 1024, 24, 16, 4096, _R50),
}

BIT = {
    "BiT-R50x1": BiTVariant(_R50, 1),
    "BiT-R50x3": BiTVariant(_R50, 3),
    "BiT-R101x1": BiTVariant(_R101, 1),
    "BiT-R101x3": BiTVariant(_R101, 3),
    "BiT-R152x2": BiTVariant(_R152, 2),
    "BiT-R152x4": BiTVariant(_R152, 4),
}


def list_models() -> list[str]:
    """Return the names of all models that `create_model` can build.

    Example:
    >>> list_models()[:3]
    ['ViT-Ti/16', 'ViT-S/32', 'ViT-S/16']
    """
    return [*VIT, *BIT]


def constructor_name(variant: str) -> str:
    """Return the name of a variant's constructor, such as `ViT_B16` for `"ViT-B/16"`."""
    name = variant.replace("+ViT-", "_").replace("-", "_").replace("+", "plus")
    return re.sub(r"(\d?)/", lambda match: f"{match[1]}_" if match[1] else "", name)


def full_name(model: str) -> str:
    """Return the variant name for a variant name or the name of its constructor."""
    model = {constructor_name(name): name for name in list_models()}.get(model, model)
    if model not in list_models():
        hint = checks.nearest(model, list_models())
        raise ValueError(f"There is no model named {model!r}.{hint} Known names: {', '.join(list_models())}.")
    return model
