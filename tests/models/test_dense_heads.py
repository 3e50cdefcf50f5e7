"""Heads that classify pixels, against their formulas."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit import models
from keras_vit.training.planning import cost
from tests import tiny
from tests.models import variants

ARRAY = keras.ops.convert_to_numpy
HEADS = [
    models.LinearSegmenter(3),
    models.LinearSegmenter(3, blocks=(0, -1), dropout_rate=0.5),
    models.UpsampleSegmenter(3, width=8),
    models.UpsampleSegmenter(3, blocks=(0, 1), width=8, stages=1),
]


def make(head, seed=0, **arguments):
    head = type(head).from_config(head.get_config())
    return tiny.randomize(keras_vit.VisionTransformer(**{**variants.SMALL, "head": head, **arguments}), seed)


@pytest.mark.slow
def test_linear_segmenter_is_batch_norm_and_a_dense_layer_on_the_patch_tokens():
    model = make(HEADS[1])
    images = variants.images(model)
    maps = [ARRAY(x) for x in keras_vit.feature_extractor(model, [0, -1])(images)["maps"]]
    head = model.get_layer("head")
    gamma, beta, mean, variance = (ARRAY(weight) for weight in head.norm.weights)
    normed = (np.concatenate(maps, axis=-1) - mean) / np.sqrt(variance + 1e-5) * gamma + beta
    expected = normed @ ARRAY(head.classifier.kernel) + ARRAY(head.classifier.bias)
    np.testing.assert_allclose(model(images), expected, rtol=1e-4, atol=1e-4)


def test_training_normalizes_by_the_batch_and_drops_whole_channels():
    head = models.LinearSegmenter(2, dropout_rate=0.5)
    x = np.random.default_rng(0).normal(3, 2, (4, 3, 5, 16)).astype("float32")
    head(np.zeros((4, 15, 16)), grid=x)
    seen = []
    head.classifier.call = lambda x, **_: seen.append(ARRAY(x)) or x
    head(np.zeros((4, 15, 16)), grid=x, training=True)
    np.testing.assert_allclose(seen[0].mean(axis=(0, 1, 2)), np.zeros(16), atol=1e-4)
    head.norm.call = lambda x, **_: x
    head(np.zeros((4, 15, 16)), grid=x, training=True)
    dropped = (seen[1] == 0).all(axis=(1, 2))  # [B, D]
    assert dropped.any() and not dropped.all()
    kept = np.broadcast_to(~dropped[:, None, None], x.shape)
    np.testing.assert_allclose(seen[1][kept], 2 * x[kept], rtol=1e-6)


@pytest.mark.slow
def test_upsampling_head_matches_hand_computation():
    """A transposed convolution of stride 2 is one of stride 1 on an image with zeros between its values."""
    model = make(HEADS[3])
    head, images = model.get_layer("head"), variants.images(model)
    maps = [ARRAY(x) for x in keras_vit.feature_extractor(model, [0, 1])(images)["maps"]]
    x = np.concatenate(maps, axis=-1) @ ARRAY(head.projection.kernel) + ARRAY(head.projection.bias)
    kernel, bias = (ARRAY(weight) for weight in head.convolutions[0].weights)  # [4, 4, out, in]
    batch, height, width, _ = x.shape
    y = np.zeros((batch, 2 * height + 2, 2 * width + 2, 4))
    for row in range(height):
        for column in range(width):
            y[:, 2 * row : 2 * row + 4, 2 * column : 2 * column + 4] += np.einsum(
                "bi,yxoi->byxo", x[:, row, column], kernel
            )
    y = y[:, 1:-1, 1:-1] + bias
    gamma, beta = (ARRAY(weight) for weight in head.norms[0].weights)
    y = (y - y.mean(axis=-1, keepdims=True)) / np.sqrt(y.var(axis=-1, keepdims=True) + 1e-6) * gamma + beta
    expected = ARRAY(ops.gelu(y)) @ ARRAY(head.classifier.kernel) + ARRAY(head.classifier.bias)
    np.testing.assert_allclose(model(images), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_dense_heads_are_saved_and_loaded(head, tmp_path):
    model = make(head)
    model.class_names = ["sky", "sea", "sand"]
    images, path = variants.images(model), tmp_path / "model.keras"
    model.save(path)
    found = keras.models.load_model(path)
    np.testing.assert_array_equal(found(images), model(images))
    assert found.class_names == ("sky", "sea", "sand")
    assert [weight.path for weight in found.weights] == [weight.path for weight in model.weights]


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_parameters_and_operations_of_dense_heads_are_counted(head):
    model = make(head)
    counted = cost.of_config(model.config)
    headless = cost.of_config(models.ViTConfig(**{**variants.SMALL, "pooling": None, "include_top": False}))
    assert counted.parameters == sum(int(np.prod(weight.shape)) for weight in model.trainable_variables)
    width, patches = model.config.hidden_size * len(head.blocks or [0]), 4 * 2
    macs = patches * width * 3
    if isinstance(head, models.UpsampleSegmenter):
        macs, places = patches * width * 8, patches
        for stage in range(head.stages):  # 16 entries of the kernel for each position of the input
            macs += places * 16 * (8 >> stage) * (4 >> stage)
            places *= 4
        macs += places * (8 >> head.stages) * 3
    assert counted.macs - headless.macs == macs


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"classes": 0}, "classes"),
        ({"classes": 2, "dropout_rate": 1.0}, "dropout_rate"),
        ({"classes": 2, "blocks": 4}, "blocks"),
    ],
)
def test_wrong_arguments_are_refused(arguments, named):
    with pytest.raises((ValueError, TypeError), match=named):
        models.LinearSegmenter(**arguments)
    with pytest.raises(ValueError, match="width"):
        models.UpsampleSegmenter(2, width=6)
