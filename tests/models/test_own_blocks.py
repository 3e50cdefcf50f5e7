"""Blocks and attention that a user gives by class, function or registered name."""

import copy
import functools

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers import EncoderBlock, SelfAttention
from keras_vit.training.planning import cost
from tests import tiny
from tests.models import own_blocks, variants

ARRAY = keras.ops.convert_to_numpy
CASES = {
    "subclass": {"block": own_blocks.ParallelBlock, "drop_path_rate": 0.2, "dropout_rate": 0.1},
    "plain": {"block": own_blocks.PlainBlock, "attention": own_blocks.Average, "drop_path_rate": 0.2},
    "attention": {"attention": own_blocks.Average, "num_registers": 1},
    "function": {"block": own_blocks.parallel, "position_embedding": "rope2d"},
    "name": {"block": "tests>ParallelBlock", "position_embedding": "relative"},
}


def make(seed=0, **arguments):
    return tiny.randomize(keras_vit.VisionTransformer(**{**variants.SMALL, **arguments}), seed)


def test_explicit_default_blocks_equal_the_default():
    model = make(block=EncoderBlock, attention=SelfAttention)
    assert model.config == make().config
    assert not model.config.has_own_blocks


@pytest.mark.slow
def test_parallel_block_matches_hand_computation():
    model = make(block=own_blocks.ParallelBlock, num_layers=1)
    tokens, blocks = (
        keras_vit.feature_extractor(model, [0], norm=False)(variants.images(model)),
        model.get_layer("encoderblock_0"),
    )
    x = keras.Model(model.input, blocks.input)(variants.images(model))
    y = blocks.norm_0(x)
    expected = x + blocks.attention(y) + blocks.mlp(y)
    np.testing.assert_allclose(ARRAY(expected)[:, 1:], np.reshape(tokens["maps"][0], (2, -1, x.shape[-1])), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_custom_blocks_are_saved_loaded_cloned_and_counted(case, tmp_path):
    model = make(**CASES[case])
    images, path = variants.images(model), tmp_path / "model.keras"
    model.save(path)
    model.save_weights(tmp_path / "model.weights.h5")
    other = make(seed=1, **CASES[case])
    other.load_weights(tmp_path / "model.weights.h5")
    loaded, built = keras.models.load_model(path), keras_vit.model_from_checkpoint(path)
    for found in (other, loaded, built, copy.deepcopy(model)):
        np.testing.assert_array_equal(found(images), model(images))
        assert found.config == model.config
    assert cost.of_config(model.config).parameters == model.count_params()
    depths, deepest = keras_vit.models.variables.depths(model)
    assert deepest == 3
    assert set(depths.values()) == {0, 1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_custom_blocks_are_trained(case):
    model = make(**CASES[case])
    before = [ARRAY(weight) for weight in model.trainable_weights]
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(variants.images(model), np.arange(2), verbose=0)
    changed = [np.any(ARRAY(new) != old) for new, old in zip(model.trainable_weights, before, strict=True)]
    assert sum(changed) > len(changed) // 2


@pytest.mark.slow
def test_rematerialized_custom_blocks_repeat_their_dropout():
    """Without a random number, both give the same gradient; a plain block would repeat its dropout with new numbers."""
    models = [make(block=own_blocks.ParallelBlock, drop_path_rate=0.0, remat=remat) for remat in ("none", "blocks")]
    for model in models:
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(variants.images(model), np.arange(2), verbose=0)
    for first, second in zip(models[0].weights, models[1].weights, strict=True):
        np.testing.assert_allclose(ARRAY(first), ARRAY(second), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="remat"):
        make(block=own_blocks.PlainBlock, remat="blocks")


@pytest.mark.slow
def test_weights_with_the_usual_names_load_into_custom_blocks(tmp_path):
    """Weights with the usual names load with `strict=False`, and no project can write the model."""
    path = keras_vit.save_checkpoint(make(), tmp_path / "model.npz")
    model = make(seed=1, block=own_blocks.ParallelBlock)
    with pytest.raises(ValueError, match="`block`"):
        keras_vit.load_checkpoint(model, path)
    report = keras_vit.load_checkpoint(model, path, strict=False)
    assert list(report.differences) == ["block"]
    assert not (report.missing or report.unexpected or report.reset)
    for got, expected in zip(model.weights, make().weights, strict=True):
        np.testing.assert_array_equal(ARRAY(got), ARRAY(expected))
    for format in ("google", "big_vision", "timm", "huggingface"):
        with pytest.raises(ValueError, match="block="):
            keras_vit.save_checkpoint(model, tmp_path / "other", format=format)
    with pytest.raises(ValueError, match="value"):
        keras_vit.load_checkpoint(make(attention=own_blocks.Average), path)


class Unregistered(EncoderBlock):
    pass


@pytest.mark.parametrize("name", ["block", "attention"])
@pytest.mark.parametrize("value", [Unregistered, functools.partial(EncoderBlock), lambda *_: None, "Unknown", None, 3])
def test_invalid_blocks_are_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}`"):
        keras_vit.models.ViTConfig(**{name: value})


@pytest.mark.slow
def test_options_that_a_layer_does_not_have_are_errors():
    with pytest.raises((TypeError, ValueError), match="layer_scale"):
        make(block=own_blocks.PlainBlock, layer_scale=0.1)


@pytest.mark.slow
def test_unregistered_blocks_load_with_custom_objects(tmp_path):
    with keras.saving.custom_object_scope({"Unregistered": Unregistered}):
        model = make(block=Unregistered)
        model.save(tmp_path / "model.keras")
    found = keras.models.load_model(tmp_path / "model.keras", custom_objects={"Unregistered": Unregistered})
    np.testing.assert_array_equal(found(variants.images(model)), model(variants.images(model)))
