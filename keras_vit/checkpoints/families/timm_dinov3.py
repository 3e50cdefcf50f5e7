"""timm's DINOv3, of its class `Eva`: how it is written. `timm.py` reads it, too.

References:
    - [timm](https://github.com/huggingface/pytorch-image-models), `eva.py`
"""

import dataclasses
from typing import Any

from keras_vit.checkpoints.checkpoint import Checkpoint, Hints, Layout
from keras_vit.checkpoints.families import _torch, timm
from keras_vit.checkpoints.families._timm import rules
from keras_vit.checkpoints.families.family import ANY, Config, Family, Files, Names, Writing
from keras_vit.checkpoints.formats.tensors import TensorSource
from keras_vit.models.normalization import IMAGENET, Normalization

_ALIGNED = 8  # widths of its gated MLPs are multiples of this


def _recognize(source: TensorSource, hints: Hints) -> Checkpoint | None:
    return None  # `timm.recognize` does


def _documents(config: Config, layout: Layout, class_names: Names, normalization: Normalization) -> Files:
    """Return `config.json`."""
    any_size = {**config, "image_size": config["image_size"] or 256}
    files = timm.documents(any_size, layout, class_names, normalization)
    document = files["config.json"]
    arguments: dict[str, Any] = document["model_args"]
    for name in ("qkv_bias", "act_layer", "fc_norm", "no_embed_class", "pos_embed", "class_token"):
        arguments.pop(name, None)
    arguments["num_reg_tokens"] = arguments.pop("reg_tokens")
    arguments["rope_temperature"] = config["rope_base"]
    arguments |= {
        f"rope_{name}_coords": config[f"rope_{name}"]
        for name in ("shift", "jitter", "rescale")
        if config[f"rope_{name}"]
    }
    name = "vit_small_plus_patch16_dinov3" if config["mlp"] == "swiglu" else "vit_small_patch16_dinov3"
    document["architecture"] = f"{name}_qkvb" if any(_torch.biases(config["qkv_bias"])) else name
    return files


FAMILY = Family(
    "timm",
    _recognize,
    rules,
    input_normalization=IMAGENET,
    writing=Writing(
        values={
            "position_embedding": ("rope2d",),
            "layer_norm_epsilon": (1e-5,),
            "activation": ("gelu", "silu"),
            "qkv_bias": ([True, False, True], False),
            "pooling": ("token", "gap"),
            "class_token": (True,),
            **dict.fromkeys(("num_registers", "mlp", "rope_base"), ANY),
            "layer_scale": ANY,
        },
        conditions=(
            (lambda config: config["layer_scale"] is None, "its blocks have a layer scale"),
            (
                lambda config: (config["activation"] == "silu") != (config["mlp"] == "swiglu"),
                "its plain MLPs have GELU",
            ),
            (
                lambda config: config["mlp"] == "swiglu" and config["mlp_dim"] % _ALIGNED != 0,
                f"the width of its gated MLPs is a multiple of {_ALIGNED}",
            ),
        ),
        layout=lambda config: Layout("timm", style="eva"),
        fit=lambda layout, config: dataclasses.replace(layout, style="eva"),
        tensors="safetensors",
        documents=_documents,
    ),
)
