"""Groups of weights: those that decay, those that are trained, and the learning rate of each layer.

The names of the layers that matter for this are listed here and nowhere else in the training.
"""

import re
from collections.abc import Sequence

_BLOCK = re.compile(r"encoderblock_\d+|block\d+/unit\d+")
_STEM = re.compile(r"(embedding|cls|dist|registers|posembed_\w+|conv_root|gn_root|root_block)(/|$)")


def is_decayed(path: str, mask: str) -> bool:
    """Return whether the weight at `path` decays: whether the regular expression `mask` is found in the path.

    `"kernel$"` matches `encoderblock_0/MlpBlock_0/Dense_0/kernel`, not biases, norms, tokens and positions.

    Example:
    >>> is_decayed("head/kernel", "kernel$"), is_decayed("head/bias", "kernel$")
    (True, False)
    """
    return re.search(mask, path) is not None


def is_trained(path: str, frozen: str) -> bool:
    """Return whether the weight at `path` is trained: whether the regular expression `frozen` is not found there.

    Example:
    >>> is_trained("head/kernel", "embedding|cls"), is_trained("embedding/kernel", "embedding|cls")
    (True, False)
    """
    return not frozen or re.search(frozen, path) is None


def layer_multipliers(paths: Sequence[str], decay: float) -> list[float]:
    """Return a factor on the learning rate of each weight, smaller the further it is from the head.

    Depth 0 holds the patch embedding, tokens, positions and the root of a ResNet; each encoder block and each
    residual unit is one deeper than the one before; final norm, pooling and head are the deepest.

    Args:
        paths: Paths of all weights, in the order of the model.
        decay: Factor per layer; 1 leaves every rate as it is.

    Returns:
        `decay ** (largest depth - depth)` for each path.

    References:
        - [BEiT](https://arxiv.org/abs/2106.08254), appendix on fine-tuning

    Example:
    >>> layer_multipliers(["embedding/kernel", "encoderblock_0/LayerNorm_0/scale", "head/kernel"], 0.5)
    [0.25, 0.5, 1.0]
    """
    blocks: dict[str, int] = {}
    depths: list[int | None] = []
    for path in paths:
        block = _BLOCK.search(path)
        if block:
            depths.append(blocks.setdefault(block.group(), len(blocks) + 1))
        else:
            depths.append(0 if _STEM.match(path) else None)
    deepest = len(blocks) + 1
    return [decay ** (deepest - (deepest if depth is None else depth)) for depth in depths]
