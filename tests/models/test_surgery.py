"""Models that users change: frozen, quantized, adapted, replaced, nested, and saved with these changes."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from tests import selection
from tests.models import variants

MODES = ("int8", "int4", "float8")
SLOW_MODES = [("int8", "token"), ("int4", "token"), ("float8", "bit")]


def saved_and_loaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.models.load_model(tmp_path / "model.keras")


def trainable(model):
    return [(v.path, v.trainable) for v in model.weights]


def assert_trains(model, images):
    """Every trainable variable has a gradient."""
    with tf.GradientTape() as tape:
        outputs = model(images, training=True)
        loss = tf.reduce_sum(outputs * tf.reshape(tf.range(tf.size(outputs), dtype=tf.float32), tf.shape(outputs)))
    variables = model.trainable_variables
    for variable, gradient in zip(variables, tape.gradient(loss, [v.value for v in variables]), strict=True):
        assert gradient is not None, variable.path


@pytest.mark.parametrize(
    ("mode", "name"),
    selection.cases(
        [(mode, name) for mode in MODES for name in ("token", "map", "bit")],
        [("int8", "bit")],
        lambda *case: pytest.mark.slow if case in SLOW_MODES else selection.EXHAUSTIVE,
    ),
)
def test_quantized_models_are_saved_and_loaded(mode, name, tmp_path):
    model = variants.make(name, **({} if name == "bit" else {"num_layers": 1}))
    images = variants.images(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*quantize.*")
        model.quantize(mode)
    quantized = [layer.name for layer in model._flatten_layers() if layer.quantization_mode == mode]
    assert len(quantized) == {"token": 7, "map": 13, "bit": 1}[name]
    loaded = saved_and_loaded(model, tmp_path)
    assert [(v.path, v.dtype) for v in loaded.weights] == [(v.path, v.dtype) for v in model.weights]
    np.testing.assert_array_equal(loaded(images), model(images))  # `predict` would compile, a minute for int4


@pytest.mark.slow
def test_quantization_of_chosen_layers(tmp_path):
    model = variants.make("token")
    model.quantize("int8", filters="Dense")
    assert model.get_layer("encoderblock_0").mlp.dense_0.quantization_mode == "int8"
    assert model.get_layer("head").quantization_mode is None
    assert model.get_layer("encoderblock_0").attention.query.quantization_mode is None
    loaded = saved_and_loaded(model, tmp_path)
    assert [layer.quantization_mode for layer in loaded._flatten_layers()] == [
        layer.quantization_mode for layer in model._flatten_layers()
    ]


@pytest.mark.parametrize("how", ["layers of the backbone", "nested backbone"])
def test_a_frozen_backbone_stays_frozen(how, tmp_path):
    backbone = variants.make("dropout", include_top=False)
    backbone.trainable = False
    if how == "nested backbone":
        images = keras.Input(backbone.input_shape[1:])
        model = keras.Model(images, keras.layers.Dense(5)(backbone(images)))
    else:
        model = keras.Model(backbone.input, keras.layers.Dense(5)(backbone.output))
    assert len(model.trainable_variables) == 2
    loaded = saved_and_loaded(model, tmp_path)
    assert len(loaded.trainable_variables) == 2
    assert trainable(loaded) == trainable(model)


@pytest.mark.parametrize("name", ["registers", "hybrid", "bit", "map"])
def test_frozen_sublayers_stay_frozen(name, tmp_path):
    model = variants.make(name)
    if name == "registers":
        model.get_layer("encoderblock_0").mlp.trainable = False
        model.get_layer("encoderblock_1").attention.query.trainable = False
        model.get_layer("encoderblock_1").scale_0.trainable = False
    elif name == "map":
        model.get_layer("encoderblock_1").trainable = False
        model.get_layer("encoderblock_1").mlp.dense_1.trainable = True
        model.get_layer("MAPHead_0").norm.trainable = False
    else:
        model.get_layer("block1").units[0].conv2.trainable = False
    loaded = saved_and_loaded(model, tmp_path)
    assert trainable(loaded) == trainable(model)
    assert {flag for _, flag in trainable(model)} == {True, False}


def test_lora(tmp_path):
    model = variants.make("token")
    images = variants.images(model)
    expected = model(images)
    for layer in model.layers:
        layer.trainable = False
    for layer in model._flatten_layers():
        if isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense)):
            layer.trainable = True
            layer.enable_lora(2)
    np.testing.assert_allclose(model(images), expected, rtol=1e-5, atol=1e-5)
    assert_trains(model, images)
    adapters = [variable for variable in model.trainable_variables if "lora" in variable.path]
    assert len(adapters) == 26  # two for each of 2 x (4 + 2) dense layers and the head
    for variable in adapters:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    changed = model(images)
    assert np.abs(changed - expected).max() > 0.01
    # Adapters take part in training, too: the model has no dropout, so that both are the same function.
    np.testing.assert_allclose(model(images, training=True), changed, rtol=1e-4, atol=1e-4)
    loaded = saved_and_loaded(model, tmp_path)
    assert trainable(loaded) == trainable(model)
    np.testing.assert_allclose(loaded(images), changed, rtol=1e-4, atol=1e-4)  # the file holds the sum of both


@pytest.mark.parametrize("built", [True, False])
def test_replaced_norms(built, tmp_path):
    model = variants.make("token")
    images = variants.images(model)
    weights = len(model.weights)
    for index in range(2):
        norm = keras.layers.RMSNormalization(name=f"rms_{index}")
        if built:
            norm.build((None, None, 16))
        model.get_layer(f"encoderblock_{index}").norm_1 = norm
    outputs = model(images)
    assert len(model.weights) == weights - 2  # a scale each instead of scale and bias
    assert_trains(model, images)
    np.testing.assert_allclose(model(images, training=True), outputs, rtol=1e-4, atol=1e-4)
    loaded = saved_and_loaded(model, tmp_path)
    assert type(loaded.get_layer("encoderblock_1").norm_1) is keras.layers.RMSNormalization
    np.testing.assert_array_equal(loaded(images), outputs)


def test_two_models_in_one_with_names_of_their_own():
    first = keras_vit.VisionTransformer(**variants.SMALL, name="first")
    second = keras_vit.VisionTransformer(**variants.SMALL, name="second")
    images = keras.Input(first.input_shape[1:])
    both = keras.Model(images, keras.layers.Average()([first(images), second(images)]))
    data = variants.images(first)
    np.testing.assert_allclose(both(data), (first(data) + second(data)) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", selection.cases(["token", "no_positions", "bit"], ["token"]))
def test_images_of_another_size_are_refused(name):
    model = variants.make(name)
    images = np.zeros((2, 32, 32, 3), "float32")
    model.predict(variants.images(model), verbose=0)  # later shapes are traced with unknown sides
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="32,32,3"):
        model.predict(images, verbose=0)
    compiled = tf.function(lambda x: model(x), input_signature=[tf.TensorSpec((None, None, None, 3))])
    assert compiled(variants.images(model)).shape == (2, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="32,32,3"):
        compiled(images)
