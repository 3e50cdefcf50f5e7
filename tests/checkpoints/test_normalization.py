"""The normalization of the input is a property of a checkpoint, which the model stores."""

import json

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.checkpoints import CheckpointError, load_checkpoint, model_from_checkpoint, save_checkpoint
from tests.checkpoints import files

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGENET = (MEAN, DEVIATION)
SYMMETRIC = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
PREPROCESSOR = {"do_normalize": True, "image_mean": MEAN, "image_std": DEVIATION, "rescale_factor": 1 / 255}


def small(**arguments):
    return keras_vit.VisionTransformer(8, 32, 1, 4, 64, **{"image_size": 32, "classes": 3, **arguments})


def hf_directory(path, preprocessor, name="hf_deit"):
    files.write_directory(path, files.tensors_of(name), files.hf_config(name))
    if preprocessor is not None:
        (path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return path


def timm_directory(path, **config):
    config = {"architecture": "vit_base_patch16_224", "model_args": {"num_heads": 4}, **config}
    return files.write_directory(path, files.tensors_of("timm_vit"), config)


@pytest.mark.parametrize(
    "preprocessor,expected",
    [
        (PREPROCESSOR, IMAGENET),
        ({"image_mean": 0.5, "image_std": [0.5] * 3}, SYMMETRIC),
        ({**PREPROCESSOR, "rescale_factor": 0.003921568859368563}, IMAGENET),  # 1/255 in single precision
        ({**PREPROCESSOR, "do_normalize": False}, ((0.0,) * 3, (1.0,) * 3)),
        ({**PREPROCESSOR, "rescale_factor": 1 / 256}, None),  # of pixels in another range
        ({"size": 224}, None),
        (None, None),
    ],
)
def test_normalization_is_read_from_the_preprocessor_of_transformers(preprocessor, expected, tmp_path):
    model = model_from_checkpoint(hf_directory(tmp_path / "deit", preprocessor))
    assert model.input_normalization == expected


@pytest.mark.parametrize(
    "config,expected",
    [
        ({"pretrained_cfg": {"mean": MEAN, "std": DEVIATION}}, IMAGENET),
        ({"mean": MEAN, "std": DEVIATION}, IMAGENET),  # as timm wrote it before there was `pretrained_cfg`
        ({"pretrained_cfg": {}}, None),
    ],
)
def test_normalization_is_read_from_the_configuration_of_timm(config, expected, tmp_path):
    assert model_from_checkpoint(timm_directory(tmp_path / "timm", **config)).input_normalization == expected


@pytest.mark.parametrize(
    "name,expected",
    [
        ("vit_token_legacy", SYMMETRIC),
        ("bv_map", SYMMETRIC),
        ("bit_big_vision", SYMMETRIC),
        ("bit_big_transfer", SYMMETRIC),
        ("mae", IMAGENET),
        ("vit_pytorch_mean", None),
    ],
)
def test_projects_without_a_preprocessor_file_have_known_normalizations(name, expected):
    arguments = {"num_heads": 4} if name in ("mae", "vit_pytorch_mean") else {}
    model = files.golden_model(name, **arguments)
    assert model.input_normalization == expected


@pytest.mark.slow
@pytest.mark.parametrize("format", ["google", "big_vision", "huggingface", "timm", "keras"])
def test_every_format_keeps_the_normalization(format, tmp_path):
    epsilon = 1e-12 if format == "huggingface" else 1e-6
    model = small(layer_norm_epsilon=epsilon)
    assert model.input_normalization is None
    model.input_normalization = IMAGENET
    suffix = {"huggingface": "", "timm": "", "keras": ".keras"}.get(format, ".npz")
    path = tmp_path / f"model{suffix}"
    if format == "keras":
        model.save(path)
        assert keras.models.load_model(path).input_normalization == IMAGENET
    else:
        save_checkpoint(model, path, format=format)
    assert model_from_checkpoint(path).input_normalization == IMAGENET
    if format == "huggingface":
        written = json.loads((path / "preprocessor_config.json").read_text())
        assert (tuple(written["image_mean"]), tuple(written["image_std"])) == IMAGENET
    if format == "timm":
        written = json.loads((path / "config.json").read_text())["pretrained_cfg"]
        assert (tuple(written["mean"]), tuple(written["std"])) == IMAGENET


@pytest.mark.slow
def test_unknown_normalizations_stay_unknown(tmp_path):
    path = save_checkpoint(small(), tmp_path / "model.npz")
    assert model_from_checkpoint(path).input_normalization is None
    with pytest.warns(UserWarning, match="input_normalization"):
        result = keras_vit.preprocess_input(np.full((1, 32, 32, 3), 255, np.uint8), small())
    assert result.min() == result.max() == 1.0


def test_loading_replaces_the_normalization(tmp_path):
    model = model_from_checkpoint(hf_directory(tmp_path / "deit", PREPROCESSOR))
    report = load_checkpoint(model, hf_directory(tmp_path / "other", None))
    assert model.input_normalization is None and any("input_normalization" in note for note in report.notes)


@pytest.mark.slow
@pytest.mark.parametrize("channels,expected", [(1, ((0.5,), (0.5,))), (5, ((0.5,) * 5,) * 2)])
def test_adapted_channels_share_one_normalization(channels, expected, tmp_path):
    model = model_from_checkpoint(files.golden_path("vit_token_legacy"), channels=channels, adapt_channels=True)
    assert model.input_normalization == expected
    deit = hf_directory(tmp_path / "deit", PREPROCESSOR)
    assert model_from_checkpoint(deit, channels=channels, adapt_channels=True).input_normalization is None


@pytest.mark.parametrize(
    "preprocessor", [{"image_mean": "0.5", "image_std": 0.5}, {"image_mean": [0.5], "image_std": [0.0]}]
)
def test_damaged_values_are_refused(preprocessor, tmp_path):
    with pytest.raises(CheckpointError, match="preprocessor_config.json"):
        model_from_checkpoint(hf_directory(tmp_path / "deit", preprocessor))


@pytest.mark.parametrize(
    "value", [0.5, (0.5, 0.0), ((0.4, 0.5), (0.5, 0.5)), ("a", "b"), (0.5, float("nan")), (0.5, 10**400)]
)
def test_wrong_values_are_refused(value):
    with pytest.raises(ValueError, match="input_normalization"):
        small().input_normalization = value


@pytest.mark.slow
def test_derived_models_keep_the_normalization():
    model = small()
    model.input_normalization = IMAGENET
    assert type(model).from_config({**model.get_config(), "image_size": 64}).input_normalization == IMAGENET
    decoder = {"decoder_hidden_size": 16, "decoder_num_layers": 1}
    pretrained = keras_vit.MaskedAutoencoder(8, 32, 1, 4, 64, image_size=32, **decoder)
    pretrained.input_normalization = IMAGENET
    assert pretrained.encoder().input_normalization == IMAGENET


def test_preprocess_input_matches_the_processors():
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    model = small()
    model.input_normalization = IMAGENET
    expected = (images / 255.0 - np.array(MEAN)) / np.array(DEVIATION)
    for given in (images, keras.ops.convert_to_tensor(images)):
        result = np.asarray(keras_vit.preprocess_input(given, model))
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, expected, atol=1e-6)  # single precision, values up to 2.7
    model.input_normalization = (0.5, 0.5)
    np.testing.assert_array_equal(keras_vit.preprocess_input(images, model), keras_vit.preprocess_input(images))
