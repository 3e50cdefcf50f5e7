"""Wrong arguments: the message names the argument and the remedy, and nothing is written or changed."""

import re

import pytest

import keras_vit
from keras_vit.checkpoints import load_checkpoint, model_from_checkpoint, save_checkpoint
from tests import tiny


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directory with checkpoints of a small model, and that model, without a head, quantized, and with LoRA."""
    directory = tmp_path_factory.mktemp("models")
    small = {"num_layers": 1, "include_top": True}
    found = {name: tiny.model(**small) for name in ("plain", "quantized", "lora")}
    found["headless"] = tiny.model(num_layers=1, include_top=False)
    save_checkpoint(found["plain"], directory / "plain.npz")
    found["plain"].save(directory / "plain.keras")
    found["quantized"].quantize("int8", filters="head")
    found["lora"].get_layer("head").enable_lora(2)
    (directory / "pictures").mkdir()
    for index in range(12):
        (directory / "pictures" / f"{index}.jpg").touch()
    return directory, found


WRONG = {
    "weights=imagenet": (lambda d, m: keras_vit.ViT_B16(weights="imagenet"), ["'augreg'?"]),
    "weights=imagenet1k": (lambda d, m: keras_vit.ViT_Ti16(weights="imagenet1k"), ["'augreg'?"]),
    "file of the hub": (lambda d, m: keras_vit.ViT_B16(weights="hf:a/b/c.npz"), ["hf:OWNER/NAME", "hf:a/b/c.npz"]),
    "weights by the name of the hub": (
        lambda d, m: keras_vit.ViT_B16(weights="google/vit-base-patch16-224"),
        ["'hf:google/vit-base-patch16-224'"],
    ),
    "load a published name": (lambda d, m: load_checkpoint(m["plain"], "augreg"), [":augreg'"]),
    "load None": (lambda d, m: load_checkpoint(m["plain"], None), ["`path`", "None"]),
    "load by the name of the hub": (lambda d, m: model_from_checkpoint("google/vit"), ["hf:google/vit"]),
    "load a number": (lambda d, m: model_from_checkpoint(3), ["`path`", "3"]),
    "save to None": (lambda d, m: save_checkpoint(m["plain"], None), ["`path`", "None"]),
    "format=hf": (lambda d, m: save_checkpoint(m["plain"], d / "x", format="hf"), ["`format`", "'huggingface'?"]),
    "format=keras": (lambda d, m: save_checkpoint(m["plain"], d / "x", format="keras"), ["`format`", "model.save"]),
    "a suffix of other formats": (
        lambda d, m: save_checkpoint(m["plain"], d / "x.safetensors"),
        ["`path`", "an .npz file", "format='google'", "with format='huggingface' or", "format='timm'", "model.save()"],
    ),
    "directory of images": (
        lambda d, m: load_checkpoint(m["plain"], d / "pictures"),
        ["without a checkpoint", "model.safetensors", "12 other files"],
    ),
    "quantized": (lambda d, m: save_checkpoint(m["quantized"], d / "x.npz"), ["quantized", "model.save"]),
    "LoRA": (lambda d, m: save_checkpoint(m["lora"], d / "x.npz"), ["LoRA", "model.save"]),
    "head=keep": (lambda d, m: load_checkpoint(m["headless"], d / "plain.npz", head="keep"), ["head='keep'"]),
    "strict=no": (lambda d, m: load_checkpoint(m["plain"], d / "plain.npz", strict="no"), ["`strict`", "'no'"]),
    "another grid": (lambda d, m: load_checkpoint(m["plain"], d / "plain.keras", grid=(1, 4)), ["grid=(1, 4)"]),
    "npz for timm": (
        lambda d, m: save_checkpoint(m["plain"], d / "x.npz", format="timm"),
        ["`path`", "directory or a .safetensors", "x.npz"],
    ),
    "directory for google": (
        lambda d, m: save_checkpoint(m["plain"], f"{d / 'x'}/", format="google"),
        ["`path`", ".npz"],
    ),
    "pickle for google": (lambda d, m: save_checkpoint(m["plain"], d / "x.pth"), ["`path`", ".npz", "x.pth"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_refused(case, models):
    directory, found = models
    before = sorted(directory.rglob("*"))
    call, parts = WRONG[case]
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(parts[0])) as error:
        call(directory, found)
    assert all(part in str(error.value) for part in parts) and len(str(error.value)) < 500
    assert sorted(directory.rglob("*")) == before


def test_grid_for_a_model_without_position_embeddings_is_refused(tmp_path):
    model = tiny.model(position_embedding="sincos2d", pooling="gap", num_layers=1)
    path = save_checkpoint(model, tmp_path / "model.npz", format="big_vision")
    with pytest.raises(ValueError, match="no position table.*grid"):
        model_from_checkpoint(path, grid=(2, 2))
