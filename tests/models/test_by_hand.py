"""What the parts of a model hold and compute, by hand: whether an argument reaches them, which its configuration cannot
tell."""

import numpy as np
import pytest

from keras_vit import models
from keras_vit.models import normalization, vit_config
from keras_vit.models.representation import representation
from tests import tiny

MASKED = {"patch_size": 4, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "mlp_dim": 24, "image_size": 16}


@pytest.mark.slow
def test_rates_of_stochastic_depth_grow_from_zero():
    """Paper of stochastic depth: linear in the depth; big_vision's first block drops nothing."""
    assert tiny.model(num_layers=3, drop_path_rate=0.2).config.drop_path_rates == pytest.approx((0.0, 0.1, 0.2))


@pytest.mark.slow
def test_dropout_arguments_are_the_rates_of_the_dropout_layers():
    model = tiny.model(dropout_rate=0.1, attention_dropout_rate=0.3, drop_path_rate=0.2)
    block = model.get_layer("encoderblock_1")
    assert model.get_layer("dropout_input").rate == block.dropout.rate == 0.1
    assert block.mlp.dropout_0.rate == block.mlp.dropout_1.rate == 0.1
    assert block.attention.dropout.rate == 0.3
    assert block.drop_path_0.rate == block.drop_path_1.rate == 0.2


@pytest.mark.slow
def test_epsilon_argument_is_the_epsilon_of_the_norms():
    model = tiny.model(pooling="map", layer_norm_epsilon=0.5)
    block, head = model.get_layer("encoderblock_0"), model.get_layer("MAPHead_0")
    norms = (block.norm_0, block.norm_1, model.get_layer("encoder_norm"), head.norm)
    assert [norm.epsilon for norm in norms] == [0.5] * 4


def test_registers_follow_the_class_token():
    model = tiny.model(num_registers=2)
    before, after = model.get_layer("registers").input, model.get_layer("registers").output
    assert after.shape[1] == before.shape[1] + 2
    tokens = np.arange(5, dtype="float32")[None, :, None] * np.ones((1, 1, 16), "float32")
    registers = model.get_layer("registers")
    registers.tokens.assign(np.full((1, 2, 16), -1.0))
    assert np.array(registers(tokens))[0, :, 0].tolist() == [0, -1, -1, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "grid"),
    [
        ({"patch_size": (16, 32)}, (14, 7)),  # of 224 x 224 pixels, for images of any size
        ({"patch_size": 16, "image_size": (64, 32)}, (4, 2)),
        ({"patch_size": 2, "resnet_blocks": (), "image_size": 30}, (4, 4)),  # 30 / 4 rounded up, as "same" convolutions
        ({"patch_size": 1, "resnet_blocks": (2, 2), "image_size": (64, 32)}, (8, 4)),
        ({"patch_size": 16, "position_grid": (3, 5)}, (3, 5)),
        ({"patch_size": (225, 112)}, (1, 2)),
    ],
)
def test_grid_follows_from_image_and_patch_size(arguments, grid):
    assert vit_config.grid(**arguments) == grid


@pytest.mark.parametrize(("ratio", "hidden"), [(0.75, 12), (0.7, 12), (0.5, 8), (0.01, 1)])
def test_number_of_masked_patches_matches_the_reference(ratio, hidden):
    """MAE keeps int(L * (1 - ratio)) of its L = 16 patches."""
    assert models.MAEConfig(**MASKED, mask_ratio=ratio).num_masked == hidden


def test_decoder_configuration_follows_from_its_arguments():
    config = models.MAEConfig(**MASKED, decoder_hidden_size=24, decoder_num_heads=2, layer_norm_epsilon=1e-3)
    assert config.decoder.mlp_dim == 96
    assert config.decoder.layer_norm_epsilon == 1e-3


def test_the_decoder_has_every_option_that_is_not_listed():
    options = {
        "mlp": "swiglu",
        "norm": "rms",
        "qk_norm": True,
        "qkv_bias": False,
        "remat": "blocks",
        "patch_norm": True,
    }
    sizes = {"decoder_hidden_size": 24, "decoder_num_heads": 4}
    config = models.MAEConfig(**MASKED, **options, layer_scale=0.1, dropout_rate=0.1, **sizes)
    different = {name for name in models.ViTConfig.names() if getattr(config, name) != getattr(config.decoder, name)}
    assert different == {"hidden_size", "num_layers", "num_heads", "mlp_dim", "layer_scale", "dropout_rate"}


@pytest.mark.slow
def test_an_encoder_keeps_the_normalization_of_the_images():
    model = models.MaskedPatchPredictor(**MASKED)
    model.input_normalization = normalization.IMAGENET
    assert model.encoder().input_normalization == normalization.IMAGENET


@pytest.mark.slow
def test_features_of_a_model_without_class_token_are_the_mean_of_its_patches():
    model = models.MaskedPatchPredictor(**MASKED, pooling="gap", num_registers=3)
    tiny.randomize(model)
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    features, _ = representation(model)(images)
    tokens = model.encoder(pooling=None, include_top=False)(images)  # 3 registers, then 16 patches
    np.testing.assert_allclose(features, np.mean(np.array(tokens)[:, 3:], axis=1), rtol=1e-4, atol=1e-5)


def test_imagenet_normalization_matches_torchvision():
    """Of ImageNet, as torchvision states them."""
    assert normalization.IMAGENET == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_range_of_normalized_pixels_matches_hand_computation():
    low, high = normalization.black_and_white(normalization.IMAGENET)
    assert low == pytest.approx((0 - 0.485) / 0.229)  # of red, the lowest of the three
    assert high == pytest.approx((1 - 0.406) / 0.225)  # of blue


def test_scale_and_offset_convert_the_input_range():
    """Images in [-1, 1] are converted to the normalization of the weights."""
    scale, offset = normalization.scale_and_offset(normalization.IMAGENET, (-1.0, 1.0))
    black, white = -1.0 * scale + offset, 1.0 * scale + offset
    mean, deviation = np.array(normalization.IMAGENET)
    np.testing.assert_allclose(black.ravel(), (0 - mean) / deviation, rtol=1e-6)
    np.testing.assert_allclose(white.ravel(), (1 - mean) / deviation, rtol=1e-6)
