"""What XLA compiles in training on processors: its values, the steps that it is part of, its bounds, and no file."""

import keras
import numpy as np
import pytest

from keras_vit import recipe
from keras_vit.layers import MlpBlock, SwiGLU, kernels
from keras_vit.layers.kernels import one_pass
from keras_vit.training.tf.state import TrainState
from keras_vit.training.tf.step import TrainStep, run_steps
from tests import tiny

tf = pytest.importorskip("tensorflow")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    monkeypatch.setattr(one_pass, "SMALLEST", 1)


def programs(function, *arguments):
    """The number of functions that XLA must compile in the graph of a function, and in those that it calls."""
    library = function.get_concrete_function(*arguments).graph.as_graph_def().library.function
    return sum(definition.attr["_XlaMustCompile"].b for definition in library if "_XlaMustCompile" in definition.attr)


def outputs_and_gradients(layer, dtype="float32"):
    """The traced function of `[B, N, D]` to the output of a layer in training and all derivatives."""

    def run(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(tf.cast(x, dtype), training=True)
        weights = [weight.value for weight in layer.trainable_weights]
        return [y, *tape.gradient(y, [x, *weights], output_gradients=tf.cast(upstream, dtype))]

    return tf.function(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "expected", "dtype"),
    [
        (MlpBlock, 2, "float32"),
        (MlpBlock, 2, "bfloat16"),
        (lambda *a, **k: MlpBlock(*a, activation="gelu", **k), 2, "float32"),
        (lambda *a, **k: MlpBlock(*a, dropout_rate=0.2, **k), 2, "float32"),
        (lambda *a, **k: MlpBlock(*a, activation="relu", **k), 0, "float32"),
        (SwiGLU, 2, "float32"),
        (SwiGLU, 2, "bfloat16"),
    ],
)
def test_values_and_derivatives_match_the_formulas(make, expected, dtype):
    layer = make(32, dtype="float32" if dtype == "float32" else "mixed_bfloat16")
    tolerance = 1e-5 if dtype == "float32" else 4 * 2**-9  # a few roundings to 8 bits
    layer.build((None, 5, 16))
    for weight in layer.trainable_weights:
        weight.assign(0.3 * RNG.normal(size=weight.shape))
    x, upstream = (tf.constant(RNG.normal(size=(2, 5, 16)), "float32") for _ in range(2))
    results = []
    for switched_off in ((), ("xla",)):
        seeds = [variable for variable in layer.variables if "seed" in variable.path]
        for seed in seeds:
            seed.assign(keras.ops.ones_like(seed))
        function = outputs_and_gradients(layer, dtype)
        with kernels.plain(*switched_off) if switched_off else kernels.plain("group_norm"):
            assert programs(function, x, upstream) == (0 if switched_off else expected)
            results.append(function(x, upstream))
    for compiled, plain in zip(*results, strict=True):
        error = tf.norm(tf.cast(compiled - plain, "float32")) / tf.norm(tf.cast(plain, "float32"))
        assert error < tolerance


def trained():
    """The weights of a rematerialized model after two steps in a loop under a strategy, and the number of programs."""
    keras.utils.set_random_seed(0)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    run = recipe.Recipe(total_steps=2, optim=recipe.Optim("sgd", 0.01, momentum=0.9))
    with strategy.scope():
        state = TrainState(tiny.model(num_layers=1, remat="blocks"), run)
        step = TrainStep(state, run, lambda batch, step, replica: (batch["image"], batch["label"]), 4)
    images = np.random.default_rng(1).normal(size=(8, *state.model.input_shape[1:])).astype("float32")
    labels = np.eye(len(tiny.CLASS_NAMES), dtype="float32")[np.arange(8) % 7]
    source = tf.data.Dataset.from_tensor_slices({"image": images, "label": labels}).batch(4, drop_remainder=True)
    steps = run_steps(strategy, step)
    iterator = iter(strategy.experimental_distribute_dataset(source))
    count = programs(steps.compiled, iterator, tf.constant(0, tf.int64), tf.constant(2), state.rates(0, 2))
    steps(iterator, 0, 2)
    return [np.asarray(weight) for weight in state.model.trainable_weights], count


@pytest.mark.slow
def test_compiled_layers_train_under_strategies_loops_and_rematerialization(monkeypatch):
    (first, count), (again, _) = trained(), trained()
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=-1")  # also in the threads of replicas
    plain, without = trained()
    assert count >= 2 and not without
    for values, same, expected in zip(first, again, plain, strict=True):
        np.testing.assert_array_equal(values, same)  # a run that is resumed ends in the same bits
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_model_that_was_trained_by_fit_is_saved_and_exported_without_xla(tmp_path):
    model = tiny.model(num_layers=1)
    images, labels = RNG.normal(size=(6, tiny.SIZE, tiny.SIZE, 3)).astype("float32"), np.arange(6)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(images, labels, batch_size=4, verbose=0)  # a batch of 4 and one of 2
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.fit(images, labels, batch_size=4, verbose=0)
    expected = loaded.predict(images, verbose=0)
    loaded.export(tmp_path / "exported", verbose=False)
    assert b"_XlaMustCompile" not in (tmp_path / "exported" / "saved_model.pb").read_bytes()
    # TensorFlow's own save keeps the step of `fit` beside the signature, which must be free of XLA.
    call = tf.function(lambda images: loaded(images))
    spec = tf.TensorSpec((None, *images.shape[1:]))
    assert programs(call, spec) == 0
    tf.saved_model.save(loaded, str(tmp_path / "saved"), signatures=call.get_concrete_function(spec))
    assert tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "saved")).convert()
    served = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"](tf.constant(images))
    np.testing.assert_allclose(*served.values(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_unknown_sizes_use_the_formula():
    layer = MlpBlock(8)
    layer.build((None, None, 4))
    function = outputs_and_gradients(layer)
    known, any_batch, any_size = ([tf.TensorSpec(shape)] * 2 for shape in ((2, 3, 4), (None, 3, 4), (2, None, 4)))
    assert [programs(function, *specs) for specs in (known, any_batch, any_size)] == [2, 2, 0]


@pytest.mark.slow
def test_compiled_layers_are_used_only_in_training_on_supported_processors(monkeypatch):
    x = tf.zeros((2, 3, 4))
    layer = MlpBlock(8)
    layer.build(x.shape)
    assert not one_pass.is_compiled(x)  # outside of a traced function, each size would be another program
    assert programs(tf.function(lambda x: layer(x)), x) == 0

    def count():
        return programs(outputs_and_gradients(layer), x, x)

    assert count() == 2
    for smallest, expected in ((48, 2), (49, 0)):  # elements of the two images of three tokens
        with monkeypatch.context() as patched:
            patched.setattr(one_pass, "SMALLEST", smallest)
            assert count() == expected
    with monkeypatch.context() as patched:
        devices = tf.config.list_logical_devices()
        accelerator = tf.config.LogicalDevice("/device:GPU:0", "GPU")
        patched.setattr(tf.config, "list_logical_devices", lambda: [*devices, accelerator])
        assert count() == 0

    def missing(x):
        raise tf.errors.NotFoundError(None, None, "could not find registered compiler for platform Host")

    one_pass._has_compiler.cache_clear()
    monkeypatch.setattr(one_pass, "_program", lambda function: missing)
    assert count() == 0
    one_pass._has_compiler.cache_clear()
