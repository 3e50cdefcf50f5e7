"""What each format can hold: a model that its readers could not rebuild with equal logits is refused."""

from collections.abc import Callable, Mapping
from typing import Any

from keras_vit.checkpoints.errors import CheckpointError

_HF_ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh", "selu", "mish")
_TIMM_ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh", "selu", "mish")
# Argument to the values that a format can express.
_COMMON = {"position_embedding_at": ("input",)}
_FLAX = {
    **_COMMON,
    "activation": ("gelu_tanh",),
    "layer_norm_epsilon": (1e-6,),
    "qkv_bias": (True,),
    "layer_scale": (None,),
    "num_registers": (0,),
    "distillation_token": (False,),
    "norm_after_pooling": (False,),
    "resnet_numerics": ("reference",),
}
_VIT: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "google": {**_FLAX, "pooling": ("token", "gap", None), "position_embedding": ("learned", "none")},
    "big_vision": {
        **_FLAX,
        "pooling": ("token", "gap", "map"),
        "position_embedding": ("learned", "sincos2d"),
        "resnet_blocks": (None,),
    },
    "huggingface": {
        **_COMMON,
        "activation": _HF_ACTIVATIONS,
        "pooling": ("token", None),
        "position_embedding": ("learned",),
        "layer_scale": (None,),
        "num_registers": (0,),
        "resnet_blocks": (None,),
        "class_token": (True,),
    },
    "timm": {
        **_COMMON,
        "activation": _TIMM_ACTIVATIONS,
        "layer_norm_epsilon": (1e-6,),
        "pooling": ("token", "gap", "map"),
        "position_embedding": ("learned", "none"),
        "resnet_numerics": ("timm",),
        "representation_size": (None,),
    },
}


def settled(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a model's arguments with those that follow from others filled in."""
    if "pooling" not in config:
        return config
    config = dict(config)
    if config["class_token"] is None:
        config["class_token"] = config["pooling"] in ("token", None)
    return config


def check(format: str, config: Mapping[str, Any], is_vit: bool) -> None:
    """Refuses a model that the format cannot hold.

    Args:
        format: The format.
        config: The model's arguments.
        is_vit: Whether it is a Vision Transformer, not a BiT ResNet.

    Raises:
        CheckpointError: With every reason.
    """
    if not is_vit:
        reasons = [] if format in ("google", "big_vision") else ["it holds no BiT ResNets"]
    else:
        reasons = [
            f"{name}={config.get(name)!r} (it can hold {' or '.join(map(repr, allowed))})"
            for name, allowed in _VIT[format].items()
            if not _among(name, config, allowed)
        ]
        reasons += [reason for applies, reason in _JOINT[format] if applies(config)]
    if not reasons:
        return
    others = [name for name in _VIT if name != format and _holds(name, config, is_vit)]
    raise CheckpointError(
        f"The {format} format cannot hold this model: {'; '.join(reasons)}. "
        f"{'Formats that can: ' + ', '.join(others) + '; or' if others else 'Save it with'} model.save('model.keras')."
    )


def _holds(format: str, config: Mapping[str, Any], is_vit: bool) -> bool:
    try:
        check_only(format, config, is_vit)
    except CheckpointError:
        return False
    return True


def check_only(format: str, config: Mapping[str, Any], is_vit: bool) -> None:
    """Like `check`, without looking at the other formats."""
    if not is_vit:
        good = format in ("google", "big_vision")
    else:
        good = all(_among(name, config, allowed) for name, allowed in _VIT[format].items())
        good = good and not any(applies(config) for applies, _ in _JOINT[format])
    if not good:
        raise CheckpointError(format)


def _among(name: str, config: Mapping[str, Any], allowed: tuple[Any, ...]) -> bool:
    if name == "resnet_numerics" and config.get("resnet_blocks") is None:
        return True
    value = config.get(name)
    if isinstance(value, list):
        value = tuple(value)
    return any(value == item and type(value) is type(item) for item in allowed)


_Condition = tuple[Callable[[Mapping[str, Any]], bool], str]


def _class_token_differs(config: Mapping[str, Any]) -> bool:
    return bool(config["class_token"]) != (config["pooling"] in ("token", None))


_JOINT: Mapping[str, tuple[_Condition, ...]] = {
    "google": ((_class_token_differs, "it has a class token for pooling='token' alone"),),
    "big_vision": ((_class_token_differs, "it has a class token for pooling='token' alone"),),
    "huggingface": (
        (
            lambda c: c["include_top"] and c["representation_size"] is not None,
            "its classifiers read the class token, not pre_logits (representation_size)",
        ),
        (
            lambda c: not c["include_top"] and c["distillation_token"] is True,
            "its headless DeiT does not average the two tokens",
        ),
        (
            lambda c: not isinstance(c["patch_size"], int) and c["patch_size"][0] != c["patch_size"][1],
            "its configuration knows square patches only",
        ),
        (lambda c: c["image_size"] is None, "its configuration needs an image_size"),
    ),
    "timm": (
        (
            lambda c: c["distillation_token"] is True and not c["include_top"],
            "its headless DeiT does not average the two tokens",
        ),
        (
            lambda c: c["distillation_token"] == "unused",
            "its distillation token always has a head",
        ),
        (
            lambda c: c["distillation_token"] and c["num_registers"],
            "it has no distillation token beside registers",
        ),
        (lambda c: c["image_size"] is None, "its configuration needs an image_size"),
    ),
}
