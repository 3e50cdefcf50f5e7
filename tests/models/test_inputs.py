"""Images that were not prepared: a warning, once."""

import warnings

import keras
import numpy as np
import pytest

import keras_vit


def model():
    return keras_vit.VisionTransformer(8, 16, 1, 2, 16, image_size=16, classes=2)


PIXELS = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), np.uint8)


def test_pixels_are_scaled():
    prepared = keras_vit.preprocess_input(PIXELS)
    assert prepared.dtype == np.float32 and (prepared.min(), prepared.max()) == (-1.0, 1.0)
    tensor = keras.ops.convert_to_tensor(PIXELS)
    np.testing.assert_allclose(keras_vit.preprocess_input(tensor), prepared, rtol=0, atol=1e-6)


@pytest.mark.parametrize("images", [PIXELS, PIXELS.astype("float32"), keras.ops.convert_to_tensor(PIXELS)])
def test_a_warning_once(images):
    network = model()
    with pytest.warns(UserWarning, match="preprocess_input"):
        network(images)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(images)


@pytest.mark.parametrize("method", ["predict", "evaluate", "fit"])
def test_a_warning_before_the_graph_is_traced(method):
    network = model()
    network.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    labels = () if method == "predict" else (np.zeros(2),)
    with pytest.warns(UserWarning, match="float32|values from 0 to 255"):
        getattr(network, method)(PIXELS.astype("float32"), *labels, verbose=0)


def test_prepared_images_are_taken_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        network = model()
        network(keras_vit.preprocess_input(PIXELS))
        keras.Model(network.input, network.get_layer("head").output)
        network(keras.Input((16, 16, 3)))


def test_the_whole_library_is_at_hand():
    assert {"data", "training", "optim", "evaluators", "inspection", "export"} <= set(dir(keras_vit))
    from keras_vit import exporting

    assert keras_vit.export is exporting.export
    with pytest.raises(AttributeError, match="nothing"):
        _ = keras_vit.nothing
