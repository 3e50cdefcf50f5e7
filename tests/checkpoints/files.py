"""Small checkpoint files for the tests, derived from golden files."""

import functools
import json
import os
import pathlib

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from keras_vit.checkpoints import architecture_of, model_from_checkpoint
from keras_vit.models import BiTConfig, ViTConfig

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
FLAX = (
    "vit_token_legacy",
    "vit_token_linen",
    "vit_gap",
    "vit_prelogits",
    "hybrid_stem",
    "hybrid_blocks",
    "traj_model",
    "bv_tok",
    "bv_gap_sincos",
    "bv_map",
    "bv_gap_rep_scan",
    "bit_big_vision",
    "bit_big_transfer",
)
TORCH = ("hf_vit", "hf_deit", "timm_vit", "timm_vit_reg_ls", "timm_hybrid_stem")
SIGLIP = ("timm_siglip", "timm_siglip_gap", "timm_siglip_tanh")
# Files of PyTorch with all that their projects write beside them.
AS_WRITTEN = sorted({path.name.removesuffix("_io.npz") for path in GOLDEN.glob("*_io.npz")} - {*TORCH})
FORMATS = {
    "vit": "google",
    "hybrid": "google",
    "traj": "google",
    "bv": "big_vision",
    "hf": "huggingface",
    "timm": "timm",
}


def golden_path(name):
    return GOLDEN / (f"{name}.npz" if name in FLAX else f"{name}.safetensors")


def golden_case(name):
    """Returns (arguments that the file does not hold, images, logits)."""
    data = np.load(GOLDEN / (f"{name}.npz" if name in FLAX else f"{name}_io.npz"))
    # timm files do not show their heads, and a width of 32 does not suggest them.
    arguments = {"num_heads": 4} if name.startswith("timm") else {}
    return arguments, data["image"], data["logits"]


def arguments_of(name):
    """Return arguments that a golden PyTorch file and its configuration do not contain."""
    if (GOLDEN / f"{name}_config.json").exists():
        return {}
    meta = json.loads(str(np.load(GOLDEN / f"{name}_io.npz")["__meta__"]))
    if name == "mae":
        return {"num_heads": meta["num_heads"]}
    arguments = {
        key: value for key, value in meta["arguments"].items() if key in ("patch_size", "channels", "image_size")
    }
    pooling = {"pooling": "gap"} if meta["arguments"].get("pool") == "mean" else {}
    return {**arguments, **pooling, "num_heads": meta["arguments"]["heads"]}


def golden_format(name):
    if name.startswith("bit"):
        return "google" if name == "bit_big_transfer" else "big_vision"
    return FORMATS[name.split("_")[0]]


def tensors_of(name):
    """Returns the tensors of a golden file under the source's own names."""
    if name in TORCH + SIGLIP:
        return load_file(golden_path(name))
    stored = np.load(golden_path(name))
    return {key.removeprefix("params/"): stored[key] for key in stored.files if key.startswith("params/")}


def write_npz(path, tensors, compressed=False):
    (np.savez_compressed if compressed else np.savez)(path, **tensors)
    return path


@functools.cache
def golden_model(name, **arguments):
    """Returns the model of a golden file, which no test may change."""
    return model_from_checkpoint(golden_path(name), **arguments)


def config_of(path, **arguments):
    """Returns the configuration of the model that a file belongs to, without building it."""
    kind, found = architecture_of(path, **arguments)
    return (BiTConfig if kind == "bit" else ViTConfig).from_dict(found)


def to_void2(array):
    """Returns bfloat16 as NumPy stores it."""
    return array.astype(ml_dtypes.bfloat16).view("V2")


def write_directory(path, tensors, config=None):
    os.makedirs(path, exist_ok=True)
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path / "model.safetensors")
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def hf_config(name="hf_vit", **changes):
    return {**json.loads((GOLDEN / f"{name}_config.json").read_text()), **changes}
