"""Masked autoencoders: read with the names of both projects, with or without the decoder, and written back."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from keras_vit import checkpoints, models
from keras_vit.checkpoints import CheckpointError
from keras_vit.checkpoints.formats import open_source
from tests import golden_data
from tests.training import masked

SIZES = {"patch_size": 8, "hidden_size": 32, "num_layers": 1, "num_heads": 4, "mlp_dim": 64, "image_size": 32}


def arguments_of(name):
    """Arguments that `model_from_checkpoint` needs in addition to the golden file."""
    if name == "hf_mae":
        return {"config": json.loads(golden_data.path("hf_mae_config.json").read_text())}
    meta = masked.load()["meta"]
    return {"num_heads": meta["num_heads"], "decoder_num_heads": meta["decoder_num_heads"]}


def path_of(name):
    return str(golden_data.path(f"{name}.safetensors"))


@pytest.fixture(scope="module", params=[("mae", "mae"), ("hf_mae", "huggingface")], ids=["mae", "huggingface"])
def opened(request):
    """A golden file, the format it is in, and its model."""
    name, format = request.param
    return path_of(name), format, checkpoints.model_from_checkpoint(path_of(name), decoder=True, **arguments_of(name))


def outputs(model, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(2, *model.config.image_shape)).astype("float32")
    order = np.stack([rng.permutation(model.config.num_patches) for _ in range(2)]).astype("int32")
    return np.asarray(model([images, order]))


@pytest.mark.slow
def test_files_are_written_as_they_were_read(opened, tmp_path):
    path, format, model = opened
    checkpoints.save_checkpoint(model, tmp_path / "copy", format=format)
    before, after = open_source(path), open_source(tmp_path / "copy")
    assert set(before.tensors) == set(after.tensors)
    assert all(before.read(name).tobytes() == after.read(name).tobytes() for name in before.tensors)
    again = checkpoints.model_from_checkpoint(tmp_path / "copy", decoder=True)
    np.testing.assert_array_equal(outputs(again), outputs(model))


@pytest.mark.slow
def test_encoder_is_loaded_without_the_decoder(opened):
    path, _, model = opened
    name = "hf_mae" if "hf_mae" in path else "mae"
    known = {key: value for key, value in arguments_of(name).items() if key != "decoder_num_heads"}
    encoder = checkpoints.model_from_checkpoint(path, **known)
    assert isinstance(encoder, models.VisionTransformer)
    images = np.random.default_rng(0).normal(size=(2, *model.config.image_shape)).astype("float32")
    np.testing.assert_allclose(encoder(images), models.representation(model)(images)[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(encoder(images), model.encoder()(images))


@pytest.mark.slow
def test_encoder_loads_into_a_model_to_fine_tune(opened):
    """Pooling, the norm after it and the head are the model's; the positions are resized."""
    path, _, source = opened
    known = {name: value for name, value in source.config.encoder_arguments().items() if name not in ("dtype", "name")}
    changes = {"pooling": "gap", "norm_after_pooling": True, "include_top": True, "classes": 3, "image_size": 48}
    model = models.VisionTransformer(**{**known, **changes})
    given = {
        key: value for key, value in arguments_of("hf_mae" if "hf_mae" in path else "mae").items() if key == "config"
    }
    report = checkpoints.load_checkpoint(model, path, **given)
    assert not report.problems()
    assert {"head/kernel", "fc_norm/scale", "fc_norm/bias"} <= set(report.reset)
    assert any(name.startswith("decoder") for name in report.dropped)
    own = {weight.path: weight.numpy() for weight in source.variables}
    kernel = "encoderblock_0/MlpBlock_0/Dense_0/kernel"
    loaded = {weight.path: weight.numpy() for weight in model.variables}
    np.testing.assert_array_equal(loaded[kernel], own[kernel])
    np.testing.assert_array_equal(loaded["fc_norm/scale"], 1.0)
    assert loaded["posembed_input/pos_embedding"].shape[1] == 37


@pytest.mark.slow
def test_encoder_without_a_decoder_loads(tmp_path):
    """The published files for fine-tuning: timm's names, no head, any pooling."""
    model = models.VisionTransformer(**SIZES, include_top=False, activation="gelu", resnet_numerics="timm")
    checkpoints.save_checkpoint(model, tmp_path / "encoder.safetensors", format="timm")
    source = open_source(tmp_path / "encoder.safetensors")
    bare = tmp_path / "bare" / "encoder.safetensors"
    bare.parent.mkdir()
    save_file({name: source.read(name) for name in source.tensors}, bare)
    fine = models.VisionTransformer(
        **SIZES, classes=3, pooling="gap", class_token=True, norm_after_pooling=True, activation="gelu"
    )
    assert "fc_norm/scale" in checkpoints.load_checkpoint(fine, bare).reset
    whole = models.MaskedAutoencoder(**SIZES, decoder_hidden_size=16, decoder_num_layers=1, decoder_num_heads=2)
    with pytest.raises(CheckpointError, match="decoder"):
        checkpoints.load_checkpoint(whole, bare)
    with pytest.raises(CheckpointError, match="decoder"):
        checkpoints.model_from_checkpoint(bare, decoder=True, num_heads=4)


DECODER = {"decoder_hidden_size": 16, "decoder_num_layers": 1, "decoder_num_heads": 2}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mae", "masked_patch"])
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_encoder_of_keras_files_loads_into_models_of_any_pooling(kind, suffix, tmp_path):
    """The encoder of a pre-training run loads into models of any pooling."""
    if kind == "mae":
        model = models.MaskedAutoencoder(**SIZES, **DECODER)
    else:
        model = models.MaskedPatchPredictor(**SIZES, pooling="gap", num_registers=2)
    path = str(tmp_path / f"model{suffix}")
    model.save(path) if suffix == ".keras" else model.save_weights(path)
    known = {name: value for name, value in model.config.encoder_arguments().items() if name not in ("dtype", "name")}
    fine = models.VisionTransformer(**{**known, "pooling": "gap", "include_top": True, "classes": 3})
    report = checkpoints.load_checkpoint(fine, path)
    assert not report.problems()
    own = {weight.path: weight.numpy() for weight in model.variables}
    for weight in fine.trainable_variables:
        if not weight.path.startswith("head"):
            np.testing.assert_array_equal(weight.numpy(), own[weight.path])
    assert checkpoints.model_from_checkpoint(path, num_heads=4).config.pooling == ("token" if kind == "mae" else "gap")
    if isinstance(model, models.MaskedAutoencoder):
        again = checkpoints.model_from_checkpoint(path, decoder=True, num_heads=4)
        np.testing.assert_array_equal(outputs(again), outputs(model))


@pytest.mark.slow
def test_the_decoder_is_resized_with_the_encoder(tmp_path):
    checkpoints.save_checkpoint(models.MaskedAutoencoder(**SIZES, **DECODER), tmp_path / "mae", format="mae")
    # The metadata of the file excluded this pooling.
    encoder = checkpoints.model_from_checkpoint(tmp_path / "mae", pooling="gap", pool_prefix_tokens=True)
    assert not checkpoints.load_checkpoint(encoder, tmp_path / "mae").problems()
    larger = checkpoints.model_from_checkpoint(tmp_path / "mae", decoder=True, image_size=48)
    tables = {weight.path: weight.shape for weight in larger.non_trainable_variables}
    assert tables == {"posembed_input/pos_embedding": (1, 37, 32), "decoder_posembed/pos_embedding": (1, 37, 16)}


@pytest.mark.slow
def test_formats_without_a_decoder_refuse_masked_autoencoders(tmp_path):
    model = models.MaskedAutoencoder(**SIZES, **DECODER)
    with pytest.raises(CheckpointError, match="mae"):
        checkpoints.save_checkpoint(model, tmp_path / "model.npz", format="google")
    with pytest.raises(CheckpointError, match="layer_norm_epsilon"):
        other = models.MaskedAutoencoder(**SIZES, layer_norm_epsilon=1e-12, **DECODER)
        checkpoints.save_checkpoint(other, tmp_path / "mae", format="mae")
    with pytest.raises(CheckpointError, match="qkv_bias"):  # its authors' code could not open the file
        other = models.MaskedAutoencoder(**SIZES, qkv_bias=False, **DECODER)
        checkpoints.save_checkpoint(other, tmp_path / "mae", format="mae")


def test_wrong_arguments_of_pretraining_models_are_refused():
    with pytest.raises(ValueError, match="mask_ratio"):
        models.MaskedAutoencoder(**SIZES, mask_ratio=0.99)
    with pytest.raises(ValueError, match="image_size"):
        models.MaskedAutoencoder(**{**SIZES, "image_size": 30})
    with pytest.raises(ValueError, match="decoder_num_heads"):
        models.MaskedAutoencoder(**SIZES, decoder_hidden_size=30)
    model = models.MaskedPatchPredictor(**SIZES)
    with pytest.raises(ValueError, match="encoder"):
        model(np.zeros((1, 32, 32, 3), "float32"))
    with pytest.raises(ValueError, match="32"):
        model([np.zeros((1, 16, 16, 3), "float32"), np.zeros((1, 16), "int32")])
    with pytest.raises(ValueError, match="pos_embedding"):
        model.encoder(image_size=48)


@pytest.mark.slow
def test_decoders_have_sixteen_heads_by_default(tmp_path):
    """As those of all published files, whose tensors do not show it."""
    model = models.MaskedAutoencoder(**SIZES, decoder_hidden_size=32, decoder_num_layers=1, decoder_num_heads=4)
    checkpoints.save_checkpoint(model, tmp_path / "noted.safetensors", format="mae")
    source = open_source(tmp_path / "noted.safetensors")
    save_file({name: source.read(name) for name in source.tensors}, tmp_path / "bare.safetensors")

    def heads(name, **arguments):
        model = checkpoints.model_from_checkpoint(tmp_path / name, decoder=True, num_heads=4, **arguments)
        return model.config.decoder_num_heads

    assert heads("noted.safetensors") == 4
    assert heads("bare.safetensors") == 16
    assert heads("bare.safetensors", decoder_num_heads=8) == 8
