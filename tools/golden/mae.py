"""Golden file of the masked autoencoders' own code (facebookresearch/mae, its checkout on PYTHONPATH)."""

from typing import Any

import numpy as np

from tools.golden import remake, torch_weights

PACKAGES = ("torch", "timm")
SIZES = ("img_size", "patch_size", "embed_dim", "depth", "num_heads")
DECODER = ("decoder_embed_dim", "decoder_depth", "decoder_num_heads", "mlp_ratio")


def masked_autoencoder(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute latents, masks, predictions, losses, gradients, and a training run with given noise for each step."""
    import torch
    from models_mae import MaskedAutoencoderViT  # of the project

    stored, meta = remake.read(name)
    arguments = {key: meta[key] for key in (*SIZES, *DECODER)}
    norm = lambda width: torch.nn.LayerNorm(width, eps=meta["layer_norm_eps"])  # noqa: E731

    def make_model(norm_pix_loss: bool) -> Any:
        made = MaskedAutoencoderViT(**arguments, norm_layer=norm, norm_pix_loss=norm_pix_loss)
        torch_weights.assign(made, "mae")
        return made

    image = torch_weights.channels_first(stored["image"])
    found = {"image": stored["image"], "noise": stored["noise"]}
    for percent in (75, 50):
        for norm_pix in (False, True):
            model = make_model(norm_pix)
            with _noise(stored["noise"]), torch.no_grad():
                latent, mask, restore = model.forward_encoder(image, percent / 100)
            predicted = model.forward_decoder(latent, restore)
            loss = model.forward_loss(image, predicted, mask)
            found[f"ratio{percent}/loss_norm_pix_{norm_pix}"] = loss.detach().numpy()
            arrays = {"latent": latent, "mask": mask, "ids_restore": restore, "pred": predicted}
            found |= {f"ratio{percent}/{key}": value.detach().numpy() for key, value in arrays.items()}
    for norm_pix in (False, True):
        model = make_model(norm_pix)
        with _noise(stored["noise"]):
            model(image, 0.75)[0].backward()
        gradients = {key: value.grad for key, value in model.named_parameters() if value.grad is not None}
        found |= {f"grad_norm_pix_{norm_pix}/{key}": value.numpy() for key, value in gradients.items()}
    return {**found, **_trajectory(make_model(meta["traj"]["norm_pix_loss"]), stored, meta["traj"])}, meta


def _trajectory(model: Any, stored: remake.Arrays, recipe: dict[str, Any]) -> remake.Arrays:
    """Train with AdamW and weight decay on matrices, according to the description. The rates are stored."""
    import torch

    model.train()
    decayed = [value for value in model.parameters() if value.requires_grad and value.ndim >= 2]
    others = [value for value in model.parameters() if value.requires_grad and value.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95))
    losses = []
    for images, noise, rate in zip(stored["traj/images"], stored["traj/noise"], stored["traj/rates"], strict=True):
        for group in optimizer.param_groups:
            group["lr"] = float(rate)
        optimizer.zero_grad()
        with _noise(noise):
            loss = model(torch_weights.channels_first(images), recipe["mask_ratio"])[0]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    kept = {key: stored[key] for key in ("traj/images", "traj/noise", "traj/rates")}
    final = {f"traj/final/{key}": value.detach().numpy() for key, value in model.named_parameters()}
    return {**kept, "traj/losses": np.array(losses, np.float32), **final}


def _noise(values: np.ndarray) -> Any:
    """Let `torch.rand`, which selects the masked patches, return the given values."""
    from unittest import mock

    import torch

    return mock.patch.object(torch, "rand", lambda *_, **__: torch.from_numpy(values))


FILES = {"mae_io": masked_autoencoder}

if __name__ == "__main__":
    remake.main(FILES, PACKAGES)
