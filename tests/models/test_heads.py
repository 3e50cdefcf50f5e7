"""Heads that a user gives: a layer that is called with the tokens and the patches on their grid."""

import copy

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import models
from keras_vit.training.planning import cost
from tests import golden_data, tiny
from tests.models import variants
from tests.models.dense_head import DenseHead

ARRAY = keras.ops.convert_to_numpy


def make(seed=0, **arguments):
    arguments = {**variants.SMALL, "head": DenseHead(3), **arguments}
    return tiny.randomize(keras_vit.VisionTransformer(**arguments), seed)


def head_weights(model):
    return [ARRAY(weight) for weight in model.config.head.weights]


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [None, (0, -1)])
@pytest.mark.parametrize("image_size", [(16, 8), None])
def test_dense_head_matches_hand_computation(blocks, image_size):
    model = make(head=DenseHead(3, blocks), image_size=image_size, num_registers=2)
    images = variants.images(model)
    extract = keras_vit.feature_extractor(model, blocks or [-1])(images)
    maps = np.concatenate([ARRAY(x) for x in extract["maps"]], axis=-1)
    head = model.get_layer("head")
    assert head is model.config.head
    assert model.output_shape == (None, *((None, None) if image_size is None else (4, 2)), 3)
    gamma, beta, mean, variance = (ARRAY(weight) for weight in head.norm.weights)
    normed = (maps - mean) / np.sqrt(variance + head.norm.epsilon) * gamma + beta
    expected = normed @ ARRAY(head.dense.kernel) + ARRAY(head.dense.bias)
    np.testing.assert_allclose(model(images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_tokens_are_those_after_the_final_norm():
    class AllTokens(keras.layers.Layer):
        def call(self, tokens, grid):
            return tokens

    model = make(head=AllTokens(), num_registers=2)
    images = variants.images(model)
    norm = keras.Model(model.input, model.get_layer("encoder_norm").output)
    np.testing.assert_allclose(model(images), norm(images), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [None, (0, -1)])
def test_custom_heads_are_saved_loaded_and_cloned(blocks, tmp_path):
    model = make(head=DenseHead(3, blocks), classifier_activation="softmax")
    model.class_names = ["sky", "sea", "sand"]
    model.get_layer("head").trainable = False
    images = variants.images(model)
    path = tmp_path / "model.keras"
    model.save(path)
    model.save_weights(tmp_path / "model.weights.h5")
    other = make(seed=1, head=DenseHead(3, blocks), classifier_activation="softmax")
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other(images), model(images))
    for found in (keras.models.load_model(path), keras_vit.model_from_checkpoint(path), copy.deepcopy(model)):
        np.testing.assert_array_equal(found(images), model(images))
        assert found.class_names == ("sky", "sea", "sand")
        assert not found.get_layer("head").trainable
    larger = type(model).from_config({**model.get_config(), "image_size": 32})
    assert larger.output_shape == (None, 8, 8, 3)
    assert keras_vit.load_checkpoint(larger, path).reset == []
    for got, expected in zip(head_weights(larger), head_weights(model), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [None, (0, -1)])
def test_cost_of_a_custom_head_includes_its_weights(blocks):
    """The weights of a user's head count if it is built, and its operations never."""
    head = DenseHead(3, blocks)
    config = models.ViTConfig(**variants.SMALL, head=head)
    headless = cost.of_config(models.ViTConfig(**{**variants.SMALL, "pooling": None, "include_top": False}))
    assert cost.of_config(config) == headless
    model = keras_vit.VisionTransformer(**variants.SMALL, head=head)
    counted = cost.of_config(config)
    assert counted.parameters == model.count_params()
    assert (counted.macs, counted.activations) == (headless.macs, headless.activations)


@pytest.mark.slow
def test_checkpoints_of_other_heads_fill_the_encoder(tmp_path):
    """Files with a class head, and without one: the given head keeps its values."""
    for index, arguments in enumerate([{}, {"representation_size": 5}]):
        source = tiny.randomize(keras_vit.VisionTransformer(**{**variants.SMALL, **arguments}))
        paths = [
            keras_vit.save_checkpoint(source, str(tmp_path / f"{index}.npz"), format="big_vision"),
            str(tmp_path / f"{index}.keras"),
        ]
        source.save(paths[1])
        for path in paths:
            model = make(seed=1)
            before = head_weights(model)
            report = keras_vit.load_checkpoint(model, path)
            assert not report.problems()
            assert not any(name.startswith("head/") for name in report.loaded)
            for got, expected in zip(head_weights(model), before, strict=True):
                np.testing.assert_array_equal(got, expected)
            built = keras_vit.model_from_checkpoint(path, head=DenseHead(5))
            assert built.output_shape == (None, 4, 2, 5)
            images = variants.images(source)
            expected = keras_vit.feature_extractor(source, [0, 1])(images)
            for found in (model, built):
                got = keras_vit.feature_extractor(found, [0, 1])(images)
                np.testing.assert_allclose(got["maps"][1], expected["maps"][1], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_dinov2", "hf_vit", "timm_siglip", "hf_mae"])
def test_encoders_of_other_projects_accept_a_custom_head(name):
    config = golden_data.path(f"{name}_config.json")
    path = golden_data.path(f"{name}.safetensors")
    model = keras_vit.model_from_checkpoint(path, config=config, head=DenseHead(3))
    assert (len(model.output_shape), model.output_shape[-1]) == (4, 3)
    kernel = model.get_layer("embedding").kernel
    expected = keras_vit.model_from_checkpoint(path, config=config).get_layer("embedding").kernel
    np.testing.assert_array_equal(kernel, expected)


@pytest.mark.slow
def test_encoder_of_a_model_with_a_custom_head_loads_into_other_models(tmp_path):
    source, path = make(), tmp_path / "model.keras"
    source.save(path)
    model = keras_vit.VisionTransformer(**variants.SMALL)
    report = keras_vit.load_checkpoint(model, path)
    assert report.reset == ["head/kernel", "head/bias"] and not report.problems()
    other = make(seed=1, head=DenseHead(7))
    before = head_weights(other)
    keras_vit.load_checkpoint(other, path)
    for got, expected in zip(head_weights(other), before, strict=True):
        np.testing.assert_array_equal(got, expected)
    with pytest.raises(ValueError, match="keep"):
        keras_vit.load_checkpoint(other, path, head="keep")
    same = make(seed=1)
    for mode, whose in (("reset", head_weights(same)), ("auto", head_weights(source))):
        keras_vit.load_checkpoint(same, path, head=mode)
        for got, expected in zip(head_weights(same), whose, strict=True):
            np.testing.assert_array_equal(got, expected)
    with pytest.raises(ValueError, match="head"):
        keras_vit.save_checkpoint(source, str(tmp_path / "model.npz"), format="google")


@pytest.mark.slow
def test_features_are_the_class_token():
    model = make()
    images = variants.images(model)
    features, output = models.representation(model)(images)
    np.testing.assert_allclose(
        features, keras_vit.feature_extractor(model, [-1])(images)["tokens"][0], rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(output, model(images), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_encoder_of_a_pretraining_model_accepts_a_custom_head():
    decoder = {"decoder_hidden_size": 8, "decoder_num_layers": 1, "decoder_num_heads": 2}
    encoder = keras_vit.MaskedAutoencoder(4, 16, 2, 2, 24, image_size=16, **decoder)
    assert encoder.encoder(head=DenseHead(3)).output_shape == (None, 4, 4, 3)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"head": "dense"}, "head"),
        ({"pooling": "gap"}, "pooling"),
        ({"include_top": False}, "include_top"),
        ({"representation_size": 4}, "representation_size"),
        ({"distillation_token": True}, "distillation_token"),
        ({"head": DenseHead(3, (2,))}, "head"),
    ],
)
def test_incompatible_arguments_are_refused(arguments, name):
    with pytest.raises(ValueError, match=name):
        make(**arguments)
