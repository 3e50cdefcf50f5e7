"""vit-pytorch's `ViT` and `SimpleViT`: read, written back, and rejected if ambiguous or of an earlier version."""

import json
import os

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.checkpoints import (
    CheckpointError,
    architecture_of,
    load_checkpoint,
    model_from_checkpoint,
    save_checkpoint,
)
from tests.checkpoints import files

GOLDEN = files.GOLDEN

NAMES = sorted(path.name.removesuffix("_io.npz") for path in GOLDEN.glob("vit_pytorch_*_io.npz"))
QUICK = ("vit_pytorch_cls", "vit_pytorch_one_head")
CASES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


def path_of(name):
    return GOLDEN / f"{name}.safetensors"


def case(name):
    """Return (arguments of vit-pytorch's class, images, logits)."""
    data = np.load(GOLDEN / f"{name}_io.npz")
    return json.loads(str(data["__meta__"]))["arguments"], data["image"], data["logits"]


def overrides(arguments):
    """Return the arguments that a file does not contain, as a user would pass them."""
    result = {name: arguments[name] for name in ("image_size", "patch_size", "channels") if name in arguments}
    result["num_heads"] = arguments["heads"]
    return result


def assert_close(logits, expected):
    # 1e-5 of the largest logit: sums of a few hundred products in single precision, in another order.
    np.testing.assert_allclose(np.asarray(logits), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_golden_file_gives_its_logits_and_is_written_back_unchanged(name, tmp_path):
    arguments, images, logits = case(name)
    model = model_from_checkpoint(path_of(name), **overrides(arguments))
    assert_close(model(images), logits)

    path = save_checkpoint(model, tmp_path / "out", format="vit_pytorch")
    written, expected = load_file(os.path.join(path, "model.safetensors")), load_file(path_of(name))
    assert set(written) == set(expected)
    for key, value in expected.items():
        assert written[key].shape == value.shape and written[key].dtype == value.dtype, key
        assert written[key].tobytes() == value.tobytes(), key

    # The written file states everything that the source left open.
    assert files.config_of(path) == model.config
    document = json.loads((tmp_path / "out" / "config.json").read_text())
    stated = {key: document["arguments"][key] for key in arguments}
    assert stated == arguments and document["class"] == ("ViT" if "pos_embedding" in expected else "SimpleViT")
    architecture = architecture_of(path_of(name), config=document)[1]
    assert architecture == {**architecture, **overrides(arguments), "patch_size": architecture["patch_size"]}


@pytest.mark.parametrize("name", ["vit_pytorch_cls", "vit_pytorch_simple"])
def test_missing_number_of_heads_is_refused(name):
    with pytest.raises(CheckpointError, match="num_heads"):
        model_from_checkpoint(path_of(name))
    with pytest.raises(CheckpointError, match="num_heads"):
        model_from_checkpoint(path_of(name), num_heads=7)
    heads = architecture_of(path_of(name), head_dim=case(name)[0]["dim_head"])[1]["num_heads"]
    assert heads == case(name)[0]["heads"]


def test_missing_patch_size_is_refused():
    name = "vit_pytorch_one_head"  # 4 x 6 pixels of one channel; without an output projection, there is one head
    with pytest.raises(CheckpointError, match="patch_size"):
        architecture_of(path_of(name))
    found = architecture_of(path_of(name), patch_size=(4, 6), grid=(3, 4))[1]
    assert (found["channels"], found["num_heads"], found["image_size"]) == (1, 1, [12, 24])


@pytest.mark.slow
def test_golden_file_loads_into_an_existing_model():
    arguments, images, logits = case("vit_pytorch_cls")
    sizes = {"patch_size": 8, "hidden_size": 32, "num_layers": 2, "num_heads": 3, "mlp_dim": 48, "head_dim": 12}
    details = {"patch_norm": True, "qkv_bias": False, "activation": "gelu", "layer_norm_epsilon": 1e-5}
    model = keras_vit.VisionTransformer(**sizes, **details, image_size=32, classes=5)
    report = load_checkpoint(model, path_of("vit_pytorch_cls"))
    assert len(report.loaded) == len(model.trainable_variables) and not report.problems() and not report.reset
    assert_close(model(images), logits)
    for name, value in {"patch_norm": False, "qkv_bias": True, "head_dim": 8}.items():
        other = keras_vit.VisionTransformer(**{**sizes, **details, name: value}, image_size=32, classes=5)
        with pytest.raises(CheckpointError, match=name):
            load_checkpoint(other, path_of("vit_pytorch_cls"))


@pytest.mark.parametrize(
    "earlier",
    [
        {"transformer.norm.weight": None},  # before 1.4, the last norm is in the head
        {"cls_token": np.zeros((1, 1, 32), np.float32)},  # before 1.18, with an axis of length one
        {"cls_token": np.zeros((1, 0, 32), np.float32)},
    ],
)
def test_files_of_earlier_versions_are_refused(earlier, tmp_path):
    tensors = {**load_file(path_of("vit_pytorch_cls")), **earlier}
    tensors = {name: value for name, value in tensors.items() if value is not None}
    save_file(tensors, tmp_path / "old.safetensors")
    with pytest.raises(CheckpointError, match=r"1\.18"):
        model_from_checkpoint(tmp_path / "old.safetensors", num_heads=3)


REFUSED = {
    "activation": {"activation": "gelu_tanh"},
    "qkv_bias": {"qkv_bias": True},
    "layer_scale": {"layer_scale": 0.1},
    "pooling": {"pooling": "map"},
    "does not combine": {"output_projection": "no_bias"},
    "image_size": {"image_size": None},
}


@pytest.mark.slow
@pytest.mark.parametrize("reason", REFUSED)
def test_models_that_vit_pytorch_cannot_build_are_refused(reason, tmp_path):
    details = {"patch_norm": True, "qkv_bias": False, "activation": "gelu", "layer_norm_epsilon": 1e-5}
    model = keras_vit.VisionTransformer(
        8, 16, 1, 2, 24, **{"image_size": 16, "classes": 2, **details, **REFUSED[reason]}
    )
    with pytest.raises(CheckpointError, match=reason):
        save_checkpoint(model, tmp_path / "out", format="vit_pytorch")


@pytest.mark.parametrize("format", ["google", "big_vision", "huggingface", "timm"])
def test_formats_of_other_projects_refuse_vit_pytorch_models(format, tmp_path):
    arguments, *_ = case("vit_pytorch_cls")
    model = model_from_checkpoint(path_of("vit_pytorch_cls"), **overrides(arguments))
    with pytest.raises(CheckpointError, match="patch_norm=True.*head_dim=12"):
        save_checkpoint(model, tmp_path / "out", format=format)


def test_tensors_of_other_variants_are_refused(tmp_path):
    tensors = load_file(path_of("vit_pytorch_simple"))
    tensors["transformer.layers.0.0.q_norm.gamma"] = np.ones((3, 1, 16), np.float32)
    save_file(tensors, tmp_path / "qk_norm.safetensors")
    with pytest.raises(CheckpointError, match=r"q_norm\.gamma"):
        model_from_checkpoint(tmp_path / "qk_norm.safetensors", num_heads=3)


def test_configurations_of_other_classes_are_refused():
    arguments = case("vit_pytorch_cls")[0]
    with pytest.raises(CheckpointError, match="NaViT"):
        architecture_of(path_of("vit_pytorch_cls"), config={"class": "NaViT", "arguments": arguments})


@pytest.mark.slow
def test_model_wrapped_in_a_module_is_read(tmp_path):
    arguments, images, logits = case("vit_pytorch_mean")
    tensors = {f"module.{name}": value for name, value in load_file(path_of("vit_pytorch_mean")).items()}
    save_file(tensors, tmp_path / "wrapped.safetensors")
    model = model_from_checkpoint(tmp_path / "wrapped.safetensors", **overrides(arguments))
    assert_close(model(images), logits)


@pytest.mark.slow
def test_file_loads_with_a_new_head_and_another_image_size():
    name = "vit_pytorch_cls"
    model = model_from_checkpoint(path_of(name), num_heads=3, image_size=48, classes=7)
    assert model.output_shape == (None, 7) and model.config.grid == (6, 6)
    features = model_from_checkpoint(path_of(name), num_heads=3, include_top=False)
    assert features.output_shape == (None, 32)
    assert np.isfinite(keras.ops.convert_to_numpy(features(case(name)[1]))).all()
