"""Golden files of vit-pytorch. Its releases differ, so install the release in the description of the file."""

import importlib
from typing import Any

from tools.golden import remake, torch_weights

PACKAGES = ("vit-pytorch", "torch")
CLASSES = {  # module and class by the name in descriptions
    "ViT": ("vit_pytorch", "ViT"),
    "SimpleViT": ("vit_pytorch.simple_vit", "SimpleViT"),
    "SimpleViT of simple_vit_with_register_tokens": ("vit_pytorch.simple_vit_with_register_tokens", "SimpleViT"),
}


def model(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute the logits of the model that is named in the description."""
    import torch

    _, meta = remake.read(name)
    _, _, kind = meta["source"].split(" ", 2)
    module, attribute = CLASSES[kind]
    model = getattr(importlib.import_module(module), attribute)(**meta["arguments"])
    torch_weights.assign(model, name.removesuffix("_io"))
    image = remake.read(name)[0]["image"]
    with torch.no_grad():
        logits = model(torch_weights.channels_first(image))
    return {"image": image, "logits": logits.numpy()}, meta


def masked_patches(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute the classes of mean colors and the loss of vit-pytorch's masked patch prediction."""
    import torch
    from vit_pytorch.mpp import MPPLoss

    stored, meta = remake.read(name)
    image, mask, logits = stored["image"], stored["mask"], stored["logits"]
    loss = MPPLoss(patch_size=meta["patch"], channels=3, output_channel_bits=3, max_pixel_val=1.0, mean=None, std=None)
    found = loss(torch.from_numpy(logits), torch_weights.channels_first(image), torch.from_numpy(mask.astype(bool)))
    return {**stored, "loss_mean_colour": found.numpy()}, meta


FILES = {
    **dict.fromkeys((path.stem for path in sorted(remake.GOLDEN.glob("vit_pytorch_*_io.npz"))), model),
    "mpp": masked_patches,
}

if __name__ == "__main__":
    remake.main(FILES, PACKAGES)
