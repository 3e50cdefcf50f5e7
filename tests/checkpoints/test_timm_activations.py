"""timm's configurations state overrides only: the activation depends on the architecture's name."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import CheckpointError, load_checkpoint, model_from_checkpoint
from tests.checkpoints import files


def siglip_directory(path, name="timm_siglip", **changes):
    config = json.loads((files.GOLDEN / f"{name}_config.json").read_text())
    return files.write_directory(path, files.tensors_of(name), {**config, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("name", files.SIGLIP)
def test_siglip_towers_give_timms_features(name):
    data = np.load(files.GOLDEN / f"{name}_io.npz")
    model = files.golden_model(name)
    features = np.asarray(model(data["image"]))
    # Single-precision sums in another order; the two forms of GELU are 4e-5 apart.
    np.testing.assert_allclose(features, data["output"], atol=1e-6)


@pytest.mark.parametrize(
    "architecture,activation",
    [
        ("vit_base_patch16_siglip_512", "gelu"),
        ("vit_base_patch16_siglip_224.v2_webli", "gelu"),
        ("vit_base_patch32_siglip_256", "gelu_tanh"),
        ("vit_large_patch16_siglip_384", "gelu"),
        ("vit_large_patch16_siglip_512", "gelu_tanh"),
        ("vit_so400m_patch14_siglip_gap_896", "gelu"),
        ("vit_so400m_patch16_siglip_gap_384", "gelu_tanh"),
        ("vit_giantopt_patch16_siglip_384", "gelu_tanh"),
        ("vit_medium_patch16_gap_256", "gelu"),
    ],
)
def test_activation_follows_from_the_architecture_name_of_timm(architecture, activation, tmp_path):
    path = siglip_directory(tmp_path / "model", architecture=architecture)
    assert files.config_of(path).activation == activation


def test_activation_argument_precedes_the_architecture_name(tmp_path):
    config = json.loads((files.GOLDEN / "timm_siglip_tanh_config.json").read_text())
    arguments = {**config["model_args"], "act_layer": "quick_gelu"}
    path = siglip_directory(tmp_path / "model", "timm_siglip_tanh", model_args=arguments)
    assert files.config_of(path).activation == "quick_gelu"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["vit_base_patch16_siglip_4096", "my_own_vit", None])
def test_unknown_architecture_names_are_refused_with_the_remedy(architecture, tmp_path, caplog):
    path = siglip_directory(tmp_path / "model", "timm_siglip_tanh", architecture=architecture)
    with pytest.raises(CheckpointError, match="activation="):
        model_from_checkpoint(path)
    model = model_from_checkpoint(path, activation="gelu_tanh")
    data = np.load(files.GOLDEN / "timm_siglip_tanh_io.npz")
    np.testing.assert_allclose(np.asarray(model(data["image"])), data["output"], atol=1e-6)
    report = load_checkpoint(type(model).from_config(model.get_config()), path)
    assert any("activation='gelu_tanh' is assumed" in note for note in report.notes)


def test_models_with_a_class_token_use_exact_gelu(tmp_path):
    config = {"architecture": "my_own_vit", "model_args": {"num_heads": 4}}
    path = files.write_directory(tmp_path / "model", files.tensors_of("timm_vit"), config)
    assert files.config_of(path).activation == "gelu"


def test_timm_models_with_post_norm_blocks_are_refused(tmp_path):
    path = siglip_directory(tmp_path / "model", architecture="vit_base_patch16_rpn_224")
    with pytest.raises(CheckpointError, match="rpn"):
        model_from_checkpoint(path)


@pytest.mark.slow
def test_files_of_this_package_state_the_activation(tmp_path):
    model = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=3, pooling="map", activation="relu")
    path = keras_vit.save_checkpoint(model, tmp_path / "model.safetensors", format="timm")
    (tmp_path / "model_config.json").unlink()
    assert model_from_checkpoint(path).config.activation == "relu"
