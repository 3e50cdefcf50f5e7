"""Features of a model with two heads, one definition everywhere: the mean of what both heads read."""

import keras
import numpy as np
import pytest

from keras_vit import inference, models
from keras_vit.exporting import signatures
from tests import tiny


@pytest.mark.slow
@pytest.mark.parametrize("representation_size", [None, 12])
def test_features_of_a_distilled_model_average_both_tokens(representation_size):
    model = tiny.model(distillation_token=True, representation_size=representation_size)
    headless = tiny.model(
        distillation_token=True, representation_size=representation_size, include_top=False, classes=None
    )
    weights = {weight.path: weight for weight in model.weights}
    for weight in headless.weights:
        weight.assign(weights[weight.path])
    images = np.random.default_rng(0).uniform(-1, 1, (3, tiny.SIZE, tiny.SIZE, 3)).astype("float32")
    inputs = [model.get_layer(name).input for name in ("head", "head_dist")]
    both = keras.Model(model.inputs[0], inputs)(images)
    # As timm: `forward_head(x, pre_logits=True)` of a distilled model is the mean of both tokens.
    expected = (np.asarray(both[0]) + np.asarray(both[1])) / 2
    assert np.abs(expected - np.asarray(both[0])).max() > 0.1
    found = {
        "representation": models.representation(model)(images)[0],
        "include_top=False": headless(images),
        "its representation": models.representation(headless)(images)[0],
        "Predictor.features": inference.KerasPredictor(model, tiny.card()).features(images),
        "exports": signatures.features_function(model)(images),
    }
    for name, features in found.items():
        np.testing.assert_allclose(np.asarray(features), expected, atol=1e-6, err_msg=name)
