"""Weights and inputs of the models of PyTorch projects. Each model has its weights in a `.safetensors` file."""

from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tools.golden import remake


def assign(model: Any, name: str, directory: Any = remake.GOLDEN) -> None:
    """Load NAME.safetensors into a model. If the file does not exist, assign random weights and write the file."""
    import torch

    path = directory / f"{name}.safetensors"
    if path.exists():
        weights = load_file(path)
    else:
        shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
        weights = {key: remake.random(f"{name}/{key}", shape) for key, shape in shapes.items()}
        save_file(weights, path)
    model.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in weights.items()})
    model.eval()


def images(name: str, shape: tuple[int, int, int, int]) -> np.ndarray:
    """Return the images `[B, H, W, C]` of NAME.npz, or random images if the file does not exist."""
    stored, _ = remake.read(name)
    return stored["image"] if "image" in stored else remake.random(f"{name}/image", shape, 1.0)


def channels_first(image: np.ndarray) -> Any:
    """Return images in PyTorch's layout."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(image, -1, 1)))
