"""Models that users change: frozen, quantized, adapted, nested, and saved with these changes.

`test_torch.py` runs this file on the torch backend, too.
"""

import json
import warnings

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers.base import CompositeLayer
from tests import selection
from tests.models import variants

MODES = ("int8", "int4", "float8")
SLOW_MODES = [("int8", "token"), ("int8", "bit"), ("int4", "token"), ("float8", "bit")]


def run(model, images, **arguments):
    """The outputs as a NumPy array."""
    return keras.ops.convert_to_numpy(model(images, **arguments))


def saved_and_loaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.models.load_model(tmp_path / "model.keras")


def trainable(model):
    return [(v.path, v.trainable) for v in model.weights]


def assert_trains(model, images):
    """Every trainable variable has a gradient."""
    variables = model.trainable_variables
    weights = keras.ops.arange(len(images) * model.output_shape[-1], dtype="float32")
    weights = keras.ops.reshape(weights, (len(images), -1))
    if keras.backend.backend() == "torch":
        keras.ops.sum(model(images, training=True) * weights).backward()
        gradients = [variable.value.grad for variable in variables]
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = keras.ops.sum(model(images, training=True) * weights)
        gradients = tape.gradient(loss, [variable.value for variable in variables])
    for variable, gradient in zip(variables, gradients, strict=True):
        assert gradient is not None, variable.path


@pytest.mark.parametrize(
    ("mode", "name"),
    selection.cases(
        [(mode, name) for mode in MODES for name in ("token", "map", "bit")],
        [],
        lambda *case: pytest.mark.slow if case in SLOW_MODES else selection.EXHAUSTIVE,
    ),
)
def test_quantized_models_are_saved_and_loaded(mode, name, tmp_path):
    model = variants.make(name, **({} if name == "bit" else {"num_layers": 1}))
    images = variants.images(model)
    exact = run(model, images)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*quantize.*")
        model.quantize(mode)
    quantized = [layer.name for layer in model._flatten_layers() if layer.quantization_mode == mode]
    assert len(quantized) == {"token": 7, "map": 13, "bit": 1}[name]
    # Relative to the largest output, through one block: about 1% with 8 bits, and 6% with 4 bits or 4 of a float8.
    # The head of BiT sums 512 features that mostly cancel: rounding its kernel to 4 bits, in NumPy, gives 25%.
    error = np.abs(run(model, images) - exact).max() / np.abs(exact).max()
    assert 0 < error < (0.03 if mode == "int8" else 0.5 if (mode, name) == ("int4", "bit") else 0.15)
    loaded = saved_and_loaded(model, tmp_path)
    assert [(v.path, v.dtype) for v in loaded.weights] == [(v.path, v.dtype) for v in model.weights]
    np.testing.assert_array_equal(run(loaded, images), run(model, images))  # `predict` would compile, a minute for int4


@pytest.mark.slow
def test_selected_layers_are_quantized(tmp_path):
    model = variants.make("token")
    images = variants.images(model)
    exact = run(model, images)
    model.quantize("int8", filters="Dense")
    error = np.abs(run(model, images) - exact).max() / np.abs(exact).max()
    assert 0 < error < 0.03
    assert model.get_layer("encoderblock_0").mlp.dense_0.quantization_mode == "int8"
    assert model.get_layer("head").quantization_mode is None
    assert model.get_layer("encoderblock_0").attention.query.quantization_mode is None
    loaded = saved_and_loaded(model, tmp_path)
    assert [layer.quantization_mode for layer in loaded._flatten_layers()] == [
        layer.quantization_mode for layer in model._flatten_layers()
    ]
    np.testing.assert_array_equal(run(loaded, images), run(model, images))


@pytest.mark.slow
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


def without_values(name):
    """The model of a variant, whose weights have no values."""
    with keras.StatelessScope(initialize_variables=False):
        if name == "bit":
            return keras_vit.BiTResNet((1, 1), image_size=16, classes=3)
        return keras_vit.VisionTransformer(**variants.SMALL | variants.VARIANTS[name])


def rebuilt(model):
    """The model that is built from the configuration in a file, without values of its weights."""
    with keras.StatelessScope(initialize_variables=False):
        return type(model).from_config(json.loads(json.dumps(model.get_config())))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["registers", "hybrid", "bit", "map"])
def test_frozen_sublayers_stay_frozen(name):
    model = without_values(name)
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
    loaded = rebuilt(model)
    assert trainable(loaded) == trainable(model)
    assert {flag for _, flag in trainable(model)} == {True, False}


@pytest.mark.slow
def test_lora_is_trained_and_saved(tmp_path):
    model = variants.make("token")
    images = variants.images(model)
    expected = run(model, images)
    for layer in model.layers:
        layer.trainable = False
    for layer in model._flatten_layers():
        if isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense)):
            layer.trainable = True
            layer.enable_lora(2)
    np.testing.assert_allclose(run(model, images), expected, rtol=1e-5, atol=1e-5)
    assert_trains(model, images)
    adapters = [variable for variable in model.trainable_variables if "lora" in variable.path]
    assert len(adapters) == 26  # two for each of 2 x (4 + 2) dense layers and the head
    for variable in adapters:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    changed = run(model, images)
    assert np.abs(changed - expected).max() > 0.01
    # Adapters take part in training, too: the model has no dropout, so that both are the same function.
    np.testing.assert_allclose(run(model, images, training=True), changed, rtol=1e-4, atol=1e-4)
    loaded = saved_and_loaded(model, tmp_path)
    assert trainable(loaded) == trainable(model)
    assert_equal_variables(loaded, model)  # also the factors and the kernels below them
    np.testing.assert_array_equal(run(loaded, images), changed)
    plain = variants.make("token")
    model.save_weights(tmp_path / "lora.weights.h5")
    plain.load_weights(tmp_path / "lora.weights.h5")  # the file has the sums, too
    np.testing.assert_allclose(run(plain, images), changed, rtol=1e-4, atol=1e-4)


def adapted(**arguments):
    """A model and its images; the projections of queries and values train by LoRA, beside the head."""
    model = variants.make("token", **arguments)
    add_lora(model)
    return model, variants.images(model, batch=4)


def add_lora(model):
    for layer in model.layers:
        layer.trainable = layer.name == "head"
        if isinstance(layer, keras_vit.layers.EncoderBlock):
            for projection in (layer.attention.query, layer.attention.value):
                projection.trainable = True
                projection.enable_lora(2, lora_alpha=3)


def assert_equal_variables(model, other):
    for first, second in zip(model.variables, other.variables, strict=True):
        assert first.trainable == second.trainable
        np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(v) for v in (first, second)), err_msg=first.path)


def train(model, images):
    model.fit(images, np.arange(len(images)) % 3, batch_size=len(images), epochs=2, shuffle=False, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["model", "weights"])
def test_training_with_lora_continues_after_a_load(how, tmp_path):
    model, images = adapted()
    model.compile(keras.optimizers.AdamW(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    train(model, images)
    if how == "model":
        loaded = saved_and_loaded(model, tmp_path)
    else:  # as `keras.callbacks.BackupAndRestore` does
        model.save_weights(tmp_path / "lora.weights.h5")
        loaded, _ = adapted(seed=5)
        loaded.compile(keras.optimizers.AdamW(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(tmp_path / "lora.weights.h5")
    assert_equal_variables(loaded, model)
    for side in (model, loaded):
        train(side, images)
    assert_equal_variables(loaded, model)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_lora_is_added_to_quantized_kernels(mode, tmp_path):
    model = variants.make("token", num_layers=1)
    model.quantize(mode, filters=lambda layer: layer.name != "head")
    assert model.get_layer("encoderblock_0").attention.query.quantization_mode == mode
    add_lora(model)
    for variable in model.trainable_variables:
        if "lora" in variable.path:
            variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    loaded = saved_and_loaded(model, tmp_path)
    assert_equal_variables(loaded, model)
    images = variants.images(model)
    np.testing.assert_array_equal(run(loaded, images), run(model, images))


@pytest.mark.slow
def test_files_without_lora_fill_the_kernels_of_a_model_with_lora(tmp_path):
    plain, (model, images) = variants.make("token"), adapted(seed=5)
    factors = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables if "lora" in v.path]
    plain.save_weights(tmp_path / "plain.weights.h5")
    model.load_weights(tmp_path / "plain.weights.h5")
    for factor, before in zip((v for v in model.trainable_variables if "lora" in v.path), factors, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(factor), before)
    np.testing.assert_allclose(run(model, images), run(plain, images), rtol=1e-5, atol=1e-5)  # B is zero at the start


def test_sublayers_are_tracked_as_in_keras():
    """A norm of two names keeps its weights when one name gets another norm before `build`; built, none is replaced."""

    @keras.saving.register_keras_serializable(package="tests")
    class Tied(CompositeLayer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.norm_0 = keras_vit.layers.LayerNorm(name="norm_0")
            self.norm_1 = self.norm_0
            self.norm_1 = keras_vit.layers.LayerNorm(name="norm_1")

        def build(self, input_shape):
            self.norm_0.build(input_shape)
            self.norm_1.build(input_shape)
            super().build()

        def call(self, x):
            return self.norm_0(x) + self.norm_1(x)

    layer = Tied(name="tied")
    layer.build((None, 4))
    assert {weight.path for weight in layer.weights} == {
        f"tied/{norm}/{weight}" for norm in ("norm_0", "norm_1") for weight in ("scale", "bias")
    }
    with pytest.raises(ValueError, match="already built"):
        layer.norm_1 = keras_vit.layers.LayerNorm(name="other")


@pytest.mark.slow
def test_two_named_models_are_combined_in_one():
    first = keras_vit.VisionTransformer(**variants.SMALL, name="first")
    second = keras_vit.VisionTransformer(**variants.SMALL, name="second")
    images = keras.Input(first.input_shape[1:])
    both = keras.Model(images, keras.layers.Average()([first(images), second(images)]))
    data = variants.images(first)
    np.testing.assert_allclose(run(both, data), (run(first, data) + run(second, data)) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="other backends have no unknown sizes")
@pytest.mark.parametrize("name", selection.cases(["token", "no_positions", "bit"], ["token"]))
def test_images_of_another_size_are_refused(name):
    import tensorflow as tf

    model = variants.make(name)
    images = np.zeros((2, 32, 32, 3), "float32")
    model.predict(variants.images(model), verbose=0)  # later shapes are traced with unknown sides
    with pytest.raises(tf.errors.InvalidArgumentError, match="32,32,3"):
        model.predict(images, verbose=0)
    compiled = tf.function(lambda x: model(x), input_signature=[tf.TensorSpec((None, None, None, 3))])
    assert compiled(variants.images(model)).shape == (2, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="32,32,3"):
        compiled(images)


@pytest.mark.slow
def test_qlora_training_reduces_the_loss():
    model = keras_vit.VisionTransformer(**variants.SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.quantize("int8", filters=lambda layer: layer.name != "head")  # as docs/how_to/lora.md has it
    add_lora(model)
    images = variants.images(model, batch=6)
    model.compile(keras.optimizers.AdamW(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(images, np.arange(6) % 3, epochs=20, batch_size=6, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
def test_a_quantized_head_of_zeros_is_warned_of():
    model = keras_vit.VisionTransformer(**variants.SMALL)
    with pytest.warns(UserWarning, match="'head'.*filters"):
        model.quantize("int8", filters="head|query")
