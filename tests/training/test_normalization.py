"""A trained model knows the normalization of its input: that of the recipe's preprocessing."""

import logging

import pytest

from keras_vit.training.device_preprocessing import set_normalization
from tests import tiny

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(
    "pp,expected",
    [
        ("decode|resize(32)|value_range(-1, 1)", ((0.5,) * 3, (0.5,) * 3)),
        ("value_range(0, 1)", ((0.0,) * 3, (1.0,) * 3)),
        ("flip_lr|value_norm", IMAGENET),
    ],
)
def test_the_preprocessing_of_the_recipe_is_noted(pp, expected):
    model = tiny.model()
    set_normalization(model, pp)
    assert model.input_normalization == expected


def test_weights_of_another_normalization_are_noticed(caplog):
    model = tiny.model()
    model.input_normalization = IMAGENET
    with caplog.at_level(logging.WARNING, logger="absl"):
        set_normalization(model, "value_norm")
    assert not caplog.records
    with caplog.at_level(logging.WARNING, logger="absl"):
        set_normalization(model, "value_range(-1, 1)")
    assert "0.485" in caplog.text and model.input_normalization == ((0.5,) * 3, (0.5,) * 3)
