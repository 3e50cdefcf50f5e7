"""Golden files of timm: Vision Transformers, DINOv2, DINOv3, SigLIP's poolings and a hybrid stem."""

import json
from typing import Any

import numpy as np

from tools.golden import remake, torch_weights

PACKAGES = ("timm", "torch")
SIZES = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "num_classes")


def plain(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute logits and tokens of a `VisionTransformer` with the arguments in the description."""
    import torch
    from timm.models import vision_transformer

    _, meta = remake.read(name)
    arguments = {key: meta[key] for key in (*SIZES, "reg_tokens") if key in meta}
    if "reg_tokens" in meta:
        arguments["init_values"] = 0.1  # enables layer scale; its values come from the file
    model = vision_transformer.VisionTransformer(**arguments)
    torch_weights.assign(model, name.removesuffix("_io"))
    image = torch_weights.images(name, (2, meta["img_size"], meta["img_size"], 3))
    with torch.no_grad():
        features = model.forward_features(torch_weights.channels_first(image))
        logits = model.forward_head(features)
    return {"image": image, "features": features.numpy(), "logits": logits.numpy()}, meta


def described(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute tokens, pooled features and output of the model described by NAME_config.json."""
    import timm
    import torch

    stem = name.removesuffix("_io")
    config = json.loads((remake.GOLDEN / f"{stem}_config.json").read_text(encoding="utf-8"))
    model = timm.create_model(config["architecture"], pretrained=False, **config["model_args"])
    torch_weights.assign(model, stem)
    image = torch_weights.images(name, (2, *config["model_args"]["img_size"], 3))
    with torch.no_grad():
        tokens = model.forward_features(torch_weights.channels_first(image))
        pooled = model.forward_head(tokens, pre_logits=True)
        output = model.forward_head(tokens)
    found = {"tokens": tokens, "pooled": pooled, "output": output}
    return {"image": image} | {key: value.numpy() for key, value in found.items()}, {
        "source": f"timm {type(model).__name__}"
    }


def hybrid(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute the logits of R+Ti/16 with one narrow block."""
    import timm
    import torch

    _, meta = remake.read(name)
    sizes = {"embed_dim": 32, "depth": 1, "num_heads": 4, "num_classes": 6, "img_size": 64}
    model = timm.create_model("vit_tiny_r_s16_p8_224", pretrained=False, **sizes)
    torch_weights.assign(model, name.removesuffix("_io"))
    image = torch_weights.images(name, (2, 64, 64, 3))
    with torch.no_grad():
        logits = model(torch_weights.channels_first(image))
    return {"image": image, "logits": np.asarray(logits)}, meta


FILES = {
    "timm_vit_io": plain,
    "timm_vit_reg_ls_io": plain,
    "timm_siglip_io": described,
    "timm_siglip_gap_io": described,
    "timm_siglip_tanh_io": described,
    "timm_hybrid_stem_io": hybrid,
    "timm_dinov2_io": described,
    "timm_dinov2_giant_io": described,
    "timm_dinov2_reg4_io": described,
    "timm_dinov3_io": described,
    "timm_dinov3_plus_io": described,
    "timm_dinov3_qkvb_io": described,
}

if __name__ == "__main__":
    remake.main(FILES, PACKAGES)
