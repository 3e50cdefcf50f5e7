"""Features of blocks, and heads on the class token and the mean of the patches."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import models
from tests import tiny
from tests.models import variants

ARRAY = keras.ops.convert_to_numpy


@pytest.mark.slow
def test_head_on_class_token_and_mean_matches_hand_computation():
    """Registers and class token are left out of the mean; both parts follow the final norm."""
    model = variants.make("rms", num_registers=2)
    assert model.config.num_features == 32
    images = variants.images(model)
    tokens = ARRAY(keras.Model(model.input, model.get_layer("encoder_norm").output)(images))
    pooled = np.concatenate([tokens[:, 0], tokens[:, 3:].mean(axis=1)], axis=-1)
    head = model.get_layer("head")
    np.testing.assert_allclose(model(images), pooled @ ARRAY(head.kernel) + ARRAY(head.bias), rtol=1e-5, atol=1e-5)
    features, _ = models.representation(model)(images)
    np.testing.assert_allclose(features, pooled, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dinov3", "any_size_rope", "hybrid", "deit", "any_size", "fc_norm", "no_final_norm"])
def test_features_are_the_tokens_of_the_blocks(name):
    model = variants.shared(name)
    config, images = model.config, variants.images(model)
    blocks = keras.Model(model.input, [model.get_layer(f"encoderblock_{number}").output for number in range(2)])
    outputs = blocks(images)
    prefix = config.num_prefix_tokens + config.num_registers
    for norm in (True, False):
        found = keras_vit.feature_extractor(model, blocks=(-2, 1), norm=norm)(images)
        has_norm = norm and name not in ("fc_norm", "no_final_norm")
        assert set(found) == ({"maps", "tokens"} if config.class_token else {"maps"})
        for number, patches in enumerate(map(ARRAY, found["maps"])):
            tokens = ARRAY(model.get_layer("encoder_norm")(outputs[number]) if has_norm else outputs[number])
            height, width = (side // stride for side, stride in zip(images.shape[1:3], config.stride, strict=True))
            assert patches.shape == (2, height, width, config.hidden_size)
            np.testing.assert_array_equal(patches.reshape(2, -1, config.hidden_size), tokens[:, prefix:])
            if config.class_token:
                np.testing.assert_array_equal(ARRAY(found["tokens"][number]), tokens[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dinov3", "any_size"])
def test_feature_extractors_are_saved_and_loaded(name, tmp_path):
    extractor = keras_vit.feature_extractor(variants.shared(name), blocks=(-2, 1))
    images = variants.images(variants.shared(name))
    extractor.save(tmp_path / "features.keras")
    loaded = keras.models.load_model(tmp_path / "features.keras")
    for got, expected in zip(*(keras.tree.flatten(m(images)) for m in (loaded, extractor)), strict=True):
        np.testing.assert_array_equal(ARRAY(got), ARRAY(expected))


@pytest.mark.slow
def test_features_of_the_last_block_are_the_input_of_the_head():
    model = variants.shared("dinov3")
    images = variants.images(model)
    (token,) = keras_vit.feature_extractor(model, blocks=[-1])(images)["tokens"]
    np.testing.assert_allclose(token, models.representation(model)(images)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_features_of_a_pretraining_model_are_the_features_of_its_encoder():
    decoder = {"decoder_hidden_size": 8, "decoder_num_layers": 1, "decoder_num_heads": 2}
    model = keras_vit.MaskedAutoencoder(4, 16, 2, 2, 24, image_size=16, **decoder)
    tiny.randomize(model)
    encoder = model.encoder()
    images = variants.images(encoder)
    found, expected = (keras_vit.feature_extractor(m, blocks=(0, 1))(images) for m in (model, encoder))
    for got, wanted in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("blocks", [(2,), (-3,), (), (0, 2.5), "01", 1])
def test_unknown_blocks_are_refused(blocks):
    with pytest.raises(ValueError, match="blocks"):
        keras_vit.feature_extractor(variants.shared("token"), blocks=blocks)


@pytest.mark.parametrize("model", [keras.Sequential(), None, "bit"])
def test_models_without_blocks_are_refused(model):
    with pytest.raises(ValueError, match="model"):
        keras_vit.feature_extractor(variants.shared("bit") if model == "bit" else model)
