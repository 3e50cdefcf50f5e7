"""The training step: gradients independent of the sharding, randomness only from the step, compiled by XLA."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import optim, tasks
from keras_vit import recipe as recipes
from keras_vit.layers.bit import BiTRoot
from keras_vit.models import BIT, VIT, variables
from keras_vit.models.variables import seed_states
from keras_vit.training import distribute, seeds
from keras_vit.training.tf import step as step_module
from keras_vit.training.tf.backend import TensorFlowBackend
from keras_vit.training.tf.state import TrainState
from keras_vit.training.tf.step import TrainStep
from tests import selection, tiny
from tests.training import toy

CLASSES, BATCH = 4, 4
PRECISIONS = ("float32", "mixed_bfloat16")
RNG = np.random.default_rng(0)


def recipe(loss="softmax", **fields):
    fields = {"name": "sgd", "learning_rate": 0.1, "schedule": recipes.Schedule("constant"), **fields}
    return recipes.Recipe(loss=loss, data=recipes.Data(batch_size=BATCH), optim=recipes.Optim(**fields))


METRICS = ("loss", "accuracy", "grad_norm", "learning_rate")


@pytest.mark.parametrize(
    ("layer", "deterministic", "exact"),
    [
        (keras.layers.MaxPooling2D(), True, True),
        (keras.layers.MaxPooling2D(), False, False),
        (BiTRoot(8), True, True),
        (keras.layers.Dense(2), True, False),
    ],
)
def test_only_a_deterministic_max_pooling_must_be_exact(layer, deterministic, exact, monkeypatch):
    """XLA cannot compile its gradient then."""

    class Asked(Exception):
        pass

    def use_xla(jit, strategy, exact_max_pool, remat):
        assert not remat
        raise Asked(jit, exact_max_pool)

    monkeypatch.setattr(distribute, "use_xla", use_xla)
    state, settings = types.SimpleNamespace(model=types.SimpleNamespace(layers=[layer])), recipe()
    settings.jit, settings.deterministic = "on", deterministic
    with pytest.raises(Asked) as asked:
        TensorFlowBackend(tf.distribute.get_strategy()).compile_steps(state, settings)
    assert asked.value.args == ("on", exact)


def small(**arguments):
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(**{**tiny.SIZES, "classes": CLASSES, **arguments})
    for weight in model.trainable_variables:  # a head of zeros would stop all gradients but its own
        weight.assign(weight + np.random.default_rng(1).normal(scale=0.02, size=weight.shape))
    return model


def batch(image_size=8, channels=3):
    images = RNG.normal(size=(BATCH, image_size, image_size, channels)).astype(np.float32)
    return {"image": tf.constant(images), "label": tf.constant([0, 1, 2, 3])}


def one_hot(batch, *_):
    return batch["image"], tf.one_hot(batch["label"], CLASSES)


def steps(model, recipe, batch, count=2, xla=False):
    """State and metrics after some steps with one batch."""
    state = TrainState(model, recipe)
    step = TrainStep(state, recipe, one_hot, BATCH)
    run = tf.function(step, jit_compile=xla, autograph=False)
    metrics = [run(batch, tf.constant(index, tf.int64)) for index in range(count)]
    assert run.experimental_get_tracing_count() == 1
    return state, np.array([[values[name] for name in METRICS] for values in metrics])


def weights(state):
    return {weight.path: weight.numpy() for weight in state.trained}


def assert_close(first, second, rtol=1e-5, atol=1e-6):
    assert set(first) == set(second)
    for path in first:
        np.testing.assert_allclose(first[path], second[path], rtol=rtol, atol=atol, err_msg=path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "micro_batches"), selection.cases([("softmax", 2), ("sigmoid", 4)], [("sigmoid", 4)], selection.EXHAUSTIVE)
)
def test_accumulation_equals_the_large_batch(loss, micro_batches):
    data = batch()
    whole, expected = steps(small(), recipe(loss), data)
    parts, got = steps(small(), recipe(loss, accumulation_steps=micro_batches), data)
    np.testing.assert_allclose(got, expected, rtol=1e-5)  # another order of summation in float32
    assert_close(weights(parts), weights(whole))


@pytest.mark.slow
def test_rematerialization_with_dropout_changes_nothing():
    noise = {"dropout_rate": 0.3, "attention_dropout_rate": 0.3, "drop_path_rate": 0.5}
    data = batch()
    kept, expected = steps(small(**noise), recipe(), data)
    again, got = steps(small(**noise, remat="blocks"), recipe(), data)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert_close(weights(again), weights(kept), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_dropout_depends_on_seed_step_and_replica_only():
    values = {
        (seed, step, replica): step_module.seed_values(seed, step, replica, 3).numpy()
        for seed in (0, 1)
        for step in (0, 1)
        for replica in (0, 1)
    }
    rows = [tuple(row) for value in values.values() for row in value]
    assert len(set(rows)) == len(rows) == 24
    np.testing.assert_array_equal(step_module.seed_values(1, 1, 1, 3), values[1, 1, 1])
    data = batch()
    first, _ = steps(small(dropout_rate=0.5), recipe(), data)
    model = small(dropout_rate=0.5)
    model(data["image"], training=True)  # advances the generators, which must not matter
    second, _ = steps(model, recipe(), data)
    for path, value in weights(first).items():
        assert value.tobytes() == weights(second)[path].tobytes()


def test_fixed_generator_repeats_its_draws():
    layer = keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.Input((50,)), layer])
    states = seed_states(model)
    assert len(states) == 1
    before = states[0].numpy()
    with seeds.SeedScope(states, tf.constant([[3, 4]], tf.int64)):
        first, second = model(np.ones((1, 50)), training=True), model(np.ones((1, 50)), training=True)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(states[0].numpy(), before)


@pytest.mark.slow
def test_frozen_weights_weight_decay_and_layer_decay_apply():
    data = batch()
    model = small(num_layers=2)
    start = {weight.path: weight.numpy() for weight in model.trainable_variables}
    keras_vit.adapt(model, "weights('^(?!embedding|encoderblock_0)')")
    state, _ = steps(model, recipe(), data, count=1)
    trained = weights(state)
    for weight in model.weights:
        frozen = weight.path.startswith(("embedding", "encoderblock_0"))
        assert frozen == (weight.path not in trained)
        assert frozen == np.array_equal(weight.numpy(), start[weight.path]) or weight.path.endswith("key/bias")

    plain = weights(steps(small(num_layers=2), recipe(clip_norm=0.0), data, count=1)[0])
    decayed = weights(steps(small(num_layers=2), recipe(clip_norm=0.0, weight_decay=0.5), data, count=1)[0])
    for path, value in plain.items():
        shrink = 0.1 * 0.5 * start[path] if path.endswith("kernel") else 0.0
        np.testing.assert_allclose(decayed[path], value - shrink, rtol=1e-5, atol=1e-6, err_msg=path)

    slower = weights(steps(small(num_layers=2), recipe(clip_norm=0.0, layer_decay=0.5), data, count=1)[0])
    for path, factor in (
        ("embedding/kernel", 0.125),
        ("encoderblock_1/MlpBlock_0/Dense_0/kernel", 0.5),
        ("head/bias", 1),
    ):
        np.testing.assert_allclose(slower[path] - start[path], factor * (plain[path] - start[path]), atol=1e-6)


@pytest.mark.slow
def test_muon_is_for_the_matrices_of_blocks_and_adamw_for_the_rest():
    data, model = batch(), small(num_layers=2)
    start = {weight.path: weight.numpy() for weight in model.trainable_variables}
    adam = weights(steps(small(num_layers=2), recipe(name="adamw"), data, count=1)[0])
    state, _ = steps(model, recipe(name="muon"), data, count=1)
    matrices = variables.block_matrices(model)
    assert len(matrices) == 12
    names = set(state.arrays_by_name())
    for path, value in weights(state).items():
        assert (f"optimizer/momentum/{path}" in names) == (path in matrices)
        assert (f"optimizer/second_moment/{path}" in names) == (path not in matrices)
        if path in matrices:
            step = (start[path] - value).reshape(np.prod(value.shape[: matrices[path]]), -1)
            scale = 0.1 * 0.2 * max(step.shape) ** 0.5
            norms = np.linalg.svd(step, compute_uv=False) / scale
            assert norms[1] > 0.6 and norms[0] < 1.3, path  # four images: a gradient of few singular values
        else:
            np.testing.assert_allclose(value, adam[path], rtol=1e-5, atol=1e-6, err_msg=path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "mirrored"),
    selection.cases(
        [("sgd", False), ("adamw", True), ("sgd", True), ("adamw", False)],
        [("sgd", False), ("adamw", True)],
        selection.EXHAUSTIVE,
    ),
)
def test_optimizer_slots_are_read_after_the_gradients(optimizer, mirrored, monkeypatch):
    """An executor starts whatever can start: slots scaled before the forward pass would be kept until the update."""
    monkeypatch.setattr(step_module, "LARGE", 16 * 32)  # such as both kernels of an MLP
    strategy = tf.distribute.MirroredStrategy(["CPU:0"]) if mirrored else tf.distribute.get_strategy()
    run = recipe(name=optimizer)
    with strategy.scope():
        state = TrainState(small(num_layers=2), run)
        step = TrainStep(state, run, one_hot, BATCH)
    trained = tf.function(lambda *arguments: strategy.run(step, args=arguments), autograph=False)
    graph = trained.get_concrete_function(batch(), tf.constant(0, tf.int64)).graph
    placeholders = {id(outside): inside for outside, inside in graph.captures}

    def users(variable):
        (on_this_device,) = strategy.experimental_local_results(variable)
        return placeholders[id(on_this_device.handle)].consumers()

    (norm,) = [op for op in graph.get_operations() if op.type == "Sqrt" and op.inputs[0].shape.rank == 0]

    def before(op):
        found, left = set(), [op]
        while left:
            op = left.pop()
            new = {*(tensor.op for tensor in op.inputs), *op.control_inputs} - found
            found |= new
            left += new
        return found

    reads = [[op for op in users(slot) if op.type == "ReadVariableOp"] for slots in state.slots for slot in slots]
    assert all(reads) and all(norm in before(op) for ops in reads for op in ops)
    large = [users(weight.value) for weight in state.trained if np.prod(weight.shape) >= 16 * 32]
    updates = [[op for op in ops if op.type.startswith("Assign")] for ops in large]
    assert len(updates) >= 4
    for (first,), (second,) in zip(updates, updates[1:], strict=False):
        assert first in before(second)


def test_two_variables_with_one_path_are_refused():
    state = TrainState(toy.network(), toy.recipe())
    state.moving = [*state.moving, state.trained[0]]
    with pytest.raises(ValueError, match="variables of a model must have different paths"):
        state.arrays_by_name()


@pytest.mark.slow
def test_evaluation_uses_the_averages():
    data = {**batch(), "valid": tf.constant([1.0, 1.0, 1.0, 0.0])}
    state, _ = steps(small(), recipe(ema_momentum=0.5), data, count=3)
    evaluate = tasks.evaluation(tasks.bind(recipe(), outputs=4), state.model, one_hot)
    sums, confusion, logits = evaluate(state.evaluated(), data)
    trained = state.model(data["image"]).numpy()
    assert np.abs(logits - trained).max() > 1e-3
    state.use_averages()
    np.testing.assert_allclose(logits, state.model(data["image"]), rtol=1e-5, atol=1e-6)
    labels = one_hot(data)[1]
    loss = np.asarray(optim.cross_entropy(logits, labels))[:3].sum()
    correct = (np.argmax(logits, -1) == [0, 1, 2, 3])[:3].sum()
    expected = {"loss": loss, "accuracy": correct, "examples": 3}
    assert {name: float(value) for name, value in sums.items()} == pytest.approx(expected, rel=1e-6)
    assert np.trace(confusion) == correct
    assert np.sum(confusion) == 3


@pytest.mark.slow
def test_moving_statistics_are_averaged_with_the_weights():
    """timm averages both: statistics of the last weights do not belong to averaged weights."""
    images = keras.Input((8, 8, 3))
    normed = keras.layers.BatchNormalization(momentum=0.5)(keras.layers.Flatten()(images))
    model = keras.Model(images, keras.layers.Dense(CLASSES)(normed))
    expected, data, run = {weight.path: weight.numpy() for weight in model.weights}, batch(), recipe(ema_momentum=0.75)
    state = TrainState(model, run)
    step = tf.function(TrainStep(state, run, one_hot, BATCH), autograph=False)
    for index in range(5):
        step(data, tf.constant(index, tf.int64))
        for weight in model.weights:  # a statistic is the mean of the first four steps, without its initial value
            kept = min(0.75, index / (index + 1)) if "moving" in weight.path else 0.75
            expected[weight.path] = kept * expected[weight.path] + (1 - kept) * weight.numpy()
    assert len(state.moving) == 2 and len(state.average_names()) == 6
    arrays = state.arrays_by_name()
    for path, average in expected.items():
        np.testing.assert_allclose(arrays[f"average/{path}"], average, rtol=1e-5, atol=1e-7)
    state.use_averages()
    np.testing.assert_allclose(state.moving[0], expected[state.moving[0].path], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_mixed_bfloat16_computes_in_bfloat16_and_stores_float32():
    data = batch()
    state, metrics = steps(small(dtype="mixed_bfloat16"), recipe(), data)
    assert {weight.dtype for weight in state.trained} == {"float32"}
    assert np.isfinite(metrics).all()
    exact, expected = steps(small(), recipe(), data)
    np.testing.assert_allclose(metrics[:, 0], expected[:, 0], rtol=0.01)  # bfloat16 has 8 bits
    start = {weight.path: weight.numpy() for weight in small().trainable_variables}
    changes, wanted = (
        {path: value - start[path] for path, value in weights(found).items()} for found in (state, exact)
    )
    assert relative_difference(changes, wanted) < 0.05


def relative_difference(found, wanted):
    """The distance of two sets of arrays, relative to the norm of the second."""
    assert set(found) == set(wanted)
    differences = sum(((found[path] - wanted[path]) ** 2).sum() for path in wanted)
    return (differences / sum((value**2).sum() for value in wanted.values())) ** 0.5


def structures():
    """Every model of the family at small size: what differs only in width and depth is the same program."""
    small = {**tiny.SIZES, "num_layers": 2, "patch_size": 1, "image_size": 32}
    found = {}
    for name in keras_vit.list_models():
        if name in VIT:
            blocks = VIT[name].resnet_blocks
            arguments = {**small, "patch_size": 8} if blocks is None else {**small, "resnet_blocks": (1,) * len(blocks)}
        else:
            assert name in BIT
            arguments = {"block_sizes": (1, 1), "width_factor": 1, "image_size": 32}
        found.setdefault(str(sorted(arguments.items())), (name, arguments))
    variants = {
        "map head": {"pooling": "map", "representation_size": 8},
        "sincos, gap, registers": {"pooling": "gap", "position_embedding": "sincos2d", "num_registers": 2},
        "relative, rematerialised": {"position_embedding": "relative", "remat": "blocks"},
        "learned2d": {"position_embedding": "learned2d", "position_embedding_at": "every_layer", "layer_scale": 0.1},
    }
    plain = {**small, "patch_size": 8}
    return list(found.values()) + [("ViT-Ti/16", {**plain, **more}) for more in variants.values()]


def noisy(name, arguments, precision):
    """A model with every kind of noise, and a recipe with everything on."""
    noise = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "drop_path_rate": 0.1} if name in VIT else {}
    model = keras_vit.create_model(name, classes=CLASSES, dtype=precision, **noise, **arguments)
    return model, recipe(ema_momentum=0.9, accumulation_steps=2, momentum_dtype="bfloat16", weight_decay=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("precision", selection.cases(PRECISIONS, PRECISIONS[1:], selection.EXHAUSTIVE))
@pytest.mark.parametrize(("name", "arguments"), selection.cases(structures(), structures()[:1], selection.EXHAUSTIVE))
def test_xla_compiles_the_step_of_every_model(name, arguments, precision):
    """The whole step, of static shapes, becomes one XLA program; an operation that XLA lacks would be an error here."""
    model, everything = noisy(name, arguments, precision)
    step = TrainStep(TrainState(model, everything), everything, one_hot, BATCH)
    step = tf.function(step, jit_compile=True, autograph=False)
    program = step.experimental_get_compiler_ir(batch(32), tf.constant(0, tf.int64), tf.constant(0.1))(stage="hlo")
    assert "ENTRY" in program
    assert "<=" not in program.split("ENTRY", 1)[1].split("\n", 1)[0]  # how XLA writes a bounded, dynamic size


@pytest.mark.slow
@pytest.mark.parametrize("precision", selection.cases(PRECISIONS, PRECISIONS[:1], selection.EXHAUSTIVE))
def test_xla_runs_the_step(precision):
    """Without noise, of which XLA draws other numbers, it is the step that TensorFlow runs by itself."""
    name, arguments = structures()[0]
    arguments, data = {**arguments, "num_layers": 1}, batch(32)

    def run(xla):
        keras.utils.set_random_seed(0)
        model = keras_vit.create_model(name, classes=CLASSES, dtype=precision, **arguments)
        for index, weight in enumerate(model.trainable_variables):
            weight.assign(weight + np.random.default_rng(index).normal(scale=0.02, size=weight.shape))
        start = {weight.path: weight.numpy() for weight in model.trainable_variables}
        state, metrics = steps(
            model, recipe(ema_momentum=0.9, accumulation_steps=2, weight_decay=0.1), data, count=2, xla=xla
        )
        return metrics, {path: value - start[path] for path, value in weights(state).items()}

    (metrics, changes), (expected, wanted) = run(True), run(False)
    # Of bfloat16, XLA leaves out roundings between operations.
    tolerance = 1e-3 if precision == "float32" else 0.05
    np.testing.assert_allclose(metrics[:, 0], expected[:, 0], rtol=tolerance)
    np.testing.assert_allclose(metrics[:, 2:], expected[:, 2:], rtol=2 * tolerance)
    assert relative_difference(changes, wanted) < 2 * tolerance
