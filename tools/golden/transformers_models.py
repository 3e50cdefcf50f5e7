"""Golden files of Hugging Face's transformers: ViT, DeiT with a teacher, ViTMAE, DINOv2, DINOv3 and SigLIP."""

import json
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np

from tools.golden import remake, torch_weights

PACKAGES = ("transformers", "torch")


def _model(kind: str, name: str) -> Any:
    """Create a model of transformers with the configuration and weights of its golden files."""
    import transformers

    model_class = getattr(transformers, kind)
    config = model_class.config_class.from_json_file(remake.GOLDEN / f"{name}_config.json")
    config._attn_implementation = "eager"  # returns attention probabilities
    model = model_class(config)
    torch_weights.assign(model, name)
    return model


def vit(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute the logits, the attention and the last tokens."""
    import torch

    model = _model("ViTForImageClassification", "hf_vit")
    image = torch_weights.images(name, (2, 32, 32, 3))
    with torch.no_grad():
        pixels = torch_weights.channels_first(image)
        found = model(pixels, output_attentions=True)
        # The tokens before the last normalization; the model's body returns them after the normalization.
        last = model.vit(pixels).last_hidden_state
    attention = {f"attention_{index}": value.numpy() for index, value in enumerate(found.attentions)}
    arrays = {"image": image, "logits": found.logits.numpy(), "last_hidden": last.numpy(), **attention}
    return arrays, remake.read(name)[1]


def deit(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute the logits of both heads and their mean."""
    import torch

    model = _model("DeiTForImageClassificationWithTeacher", "hf_deit")
    image = torch_weights.images(name, (2, 32, 32, 3))
    with torch.no_grad():
        found = model(torch_weights.channels_first(image))
    arrays = {key: getattr(found, key).numpy() for key in ("logits", "cls_logits", "distillation_logits")}
    return {"image": image, **arrays}, remake.read(name)[1]


def masked_autoencoder(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute the loss, the reconstruction and the mask for given noise."""
    import torch

    model = _model("ViTMAEForPreTraining", "hf_mae")
    stored, meta = remake.read(name)
    image = torch_weights.images(name, (4, 32, 32, 3))
    noise = stored.get("noise", np.random.default_rng(0).random((len(image), 16)).astype(np.float32))
    with torch.no_grad():
        found = model(torch_weights.channels_first(image), noise=torch.from_numpy(noise))
    arrays = {key: getattr(found, key).numpy() for key in ("loss", "logits", "mask", "ids_restore")}
    return {"image": image, "noise": noise, **arrays}, meta


def tower(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute all hidden states before the last norm and the outputs of the model described by the files."""
    import torch
    import transformers

    stored, meta = remake.read(name)
    name = name.removesuffix("_io")
    files = {"config.json": f"{name}_config.json", "model.safetensors": f"{name}.safetensors"}
    with tempfile.TemporaryDirectory() as folder:  # transformers renames tensors while it reads files
        for target, source in files.items():
            shutil.copy(remake.GOLDEN / source, pathlib.Path(folder) / target)
        config = json.loads((pathlib.Path(folder) / "config.json").read_text(encoding="utf-8"))
        model_class = getattr(transformers, config["architectures"][0])
        model = model_class.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        found = model(torch_weights.channels_first(stored["image"]), output_hidden_states=True)
    outputs = {key: found.get(key) for key in ("logits", "last_hidden_state", "pooler_output")}
    arrays = {key: value.numpy() for key, value in outputs.items() if value is not None}
    hidden_states = np.stack([value.numpy() for value in found.hidden_states])
    return {"image": stored["image"], "hidden_states": hidden_states, **arrays}, meta


def image_processors(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute the pixels of each image with each processor in the description, using Pillow."""
    import transformers

    stored, meta = remake.read(name)
    arrays = {key: image for key, image in stored.items() if key.startswith("images/")}
    for kind, document in meta["processors"].items():
        process = getattr(transformers, f"{document['image_processor_type']}Pil")(**document)
        for key, image in list(arrays.items()):
            if key.startswith("images/"):
                pixels = process(image, return_tensors="np")["pixel_values"][0]  # [channels, height, width]
                arrays[f"{kind}/{key.removeprefix('images/')}"] = pixels.transpose(1, 2, 0)
    return arrays, meta


TOWERS = (
    *("hf_dinov2", "hf_dinov2_swiglu", "hf_dinov2_registers", "hf_dinov2_larger_grid"),
    *("hf_dinov2_registers_smaller_grid", "hf_dinov3", "hf_dinov3_wide", "hf_dinov3_gated"),
    *("hf_siglip", "hf_siglip_head72", "hf_siglip_classifier"),
)
FILES = {"hf_vit_io": vit, "hf_deit_io": deit, "hf_mae_io": masked_autoencoder, "hf_image_processors": image_processors}
FILES |= dict.fromkeys((f"{name}_io" for name in TOWERS), tower)

if __name__ == "__main__":
    remake.main(FILES, PACKAGES)
