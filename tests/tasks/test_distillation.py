"""Distillation: the loss by its formula, the teacher's view of an image, and runs that learn from other runs."""

import json
import types

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from keras import ops

import keras_vit
from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.data import preprocess
from keras_vit.runs import run_directory, run_fields
from keras_vit.tasks.distillation import divergence
from keras_vit.training import teacher
from keras_vit.training.teacher import Teacher
from keras_vit.training.tf.state import TrainState
from keras_vit.training.tf.step import TrainStep
from tests import tiny

CLASSES, BATCH, SIZE = 3, 4, tiny.SIZES["image_size"]
RNG = np.random.default_rng(0)


def network(seed, **arguments):
    keras.utils.set_random_seed(seed)
    model = keras_vit.VisionTransformer(**{**tiny.SIZES, "classes": CLASSES, **arguments})
    for weight in model.trainable_variables:  # a head of zeros would give equal probabilities
        weight.assign(weight + np.random.default_rng(seed).normal(scale=0.2, size=weight.shape))
    return model


def run_of(model, pp="value_range(-1, 1)"):
    return types.SimpleNamespace(model=model, preprocess=pp)


def recipe(temperature=1.0, **optim):
    optim = {"name": "sgd", "learning_rate": 0.1, "schedule": recipes.Schedule("constant"), **optim}
    return recipes.Recipe(
        task=f"distillation('teacher', temperature={temperature})",
        data=recipes.Data(batch_size=BATCH),
        optim=recipes.Optim(**optim),
    )


def batch():
    images = RNG.uniform(-1, 1, (BATCH, SIZE, SIZE, 3)).astype(np.float32)
    return {"image": tf.constant(images), "label": tf.constant([0, 1, 2, 0])}


def one_hot(batch, *_):
    return batch["image"], tf.one_hot(batch["label"], CLASSES)


def expected_divergence(logits, targets, temperature):
    """The sum of p log(p / q) over the classes, times the square of the temperature."""
    p, q = (scipy.special.softmax(values / temperature, axis=-1) for values in (targets, logits))
    return temperature**2 * scipy.special.rel_entr(p, q).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 10.0])
def test_divergence_matches_the_formula(temperature):
    logits, targets = RNG.normal(size=(2, 5, 7)).astype(np.float32) * 3
    found = ops.convert_to_numpy(divergence(logits, targets, temperature))
    # Two sums of about temperature**2 in float32 are subtracted.
    expected = expected_divergence(logits.astype(np.float64), targets.astype(np.float64), temperature)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * temperature**2)


def test_divergence_of_equal_logits_is_zero():
    logits = RNG.normal(size=(5, 7)).astype(np.float32)
    np.testing.assert_allclose(ops.convert_to_numpy(divergence(logits, logits, 3.0)), 0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "pp", "own"),
    [
        (SIZE, "value_range(-1, 1)", "value_range(0, 1)"),
        (2 * SIZE, "value_range(0, 1)", "resize(16)|value_range(-1, 1)"),
        ((2 * SIZE, SIZE // 2), "value_range(-1, 1)", "resize((16, 4))|value_range(-1, 1)"),
        (SIZE // 2, "value_range(-1, 1)", "resize(4)|value_norm((0.1, 0.2, 0.3), (0.5, 0.4, 0.3))"),
    ],
)
def test_a_teacher_sees_images_as_it_was_trained_on(size, pp, own):
    model = network(1, image_size=size, patch_size=2)
    images = RNG.uniform(0, 255, (BATCH, SIZE, SIZE, 3)).astype(np.float32)
    resized = tf.image.resize(images, size if isinstance(size, tuple) else (size, size), antialias=True)
    expected = model(preprocess.device_function(own)(resized), training=False)
    found = Teacher(run_of(model, own), pp)(preprocess.device_function(pp)(tf.constant(images)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)  # float32: another order of the same operations


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "micro_batches"), [(1.0, 1), (2.0, 2)])
def test_step_minimizes_the_divergence_from_the_teacher(temperature, micro_batches):
    model, taught = network(0), network(1, drop_path_rate=0.5)
    before = [weight.numpy() for weight in taught.weights]
    data, run = batch(), recipe(temperature, accumulation_steps=micro_batches)
    expected = expected_divergence(model(data["image"]).numpy(), taught(data["image"]).numpy(), temperature).mean()
    correct = np.mean(np.argmax(model(data["image"]), axis=-1) == data["label"])
    task = tasks.bind(run)
    task.teacher_model = Teacher(run_of(taught), "value_range(-1, 1)")
    state = TrainState(model, run, task)
    step = tf.function(TrainStep(state, run, one_hot, BATCH), autograph=False)
    history = [step(data, tf.constant(index, tf.int64)) for index in range(10)]
    np.testing.assert_allclose(history[0]["loss"], expected, rtol=1e-5)
    assert float(history[0]["accuracy"]) == pytest.approx(correct)
    assert history[-1]["loss"] < 0.7 * history[0]["loss"]
    for weight, value in zip(taught.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)
    assert len(state.specs()) == len(TrainState(network(0), run).specs())  # no checkpoint holds the teacher


@pytest.mark.slow
def test_evaluation_uses_the_labels():
    model, data = network(0), {**batch(), "valid": tf.ones([BATCH])}
    sums = [
        tasks.evaluation(tasks.bind(run), model, one_hot)((), data)[0]
        for run in (recipe(), recipes.replace(recipe(), {"task": "classification"}))
    ]
    assert sums[0] == sums[1]


@pytest.mark.parametrize("fields", [{"label_smoothing": 0.1}, {"loss": "sigmoid"}])
def test_fields_that_distillation_does_not_read_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        recipes.check(recipes.replace(recipe(), fields))


def test_wrong_temperature_is_refused():
    with pytest.raises(ValueError, match="temperature must be positive"):
        recipes.parse_task("distillation('teacher', temperature=0)")


def record(folder, **changes):
    """A run directory with a record and without a model."""
    content = {
        "recipe": {"task": "classification", "total_steps": 10},
        "data": {"class_names": ["a", "b"]},
        "preprocess": "value_range(-1, 1)",
    }
    (folder / "config.json").write_text(json.dumps(content | changes))
    return recipes.Recipe(task=f"distillation({str(folder)!r})")


def check_teacher(class_names, known=("a", "b"), **recipe):
    """Check a teacher that learned the classes `known` for data with the classes `class_names`."""
    run = types.SimpleNamespace(path="teacher", config={"recipe": recipe}, class_names=known)
    teacher.check_classes(run, class_names)


def test_teacher_with_other_classes_is_refused():
    check_teacher(("a", "b"))
    check_teacher(("étang", "lac"), ("e\u0301tang", "Lac"))  # NFD, case
    with pytest.raises(ValueError, match=r"2 classes .*\['b', 'a'\]. Received: .*, with 2 classes: \['a', 'b'\]"):
        check_teacher(("b", "a"))


@pytest.mark.parametrize("changes", [{"loss": "sigmoid"}, {"task": "mae"}])
def test_teacher_that_is_not_a_classifier_is_refused(changes):
    with pytest.raises(ValueError, match="must be a classifier"):
        check_teacher(("a", "b"), **changes)


def test_missing_teacher_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="A run writes it when training ends"):
        teacher.load(tasks.bind(record(tmp_path)), channels=1)


@pytest.mark.slow
def test_teacher_with_other_channels_is_refused(tmp_path):
    run = record(tmp_path)
    network(0).save(tmp_path / "model.keras")
    teacher.load(tasks.bind(run), channels=3)
    with pytest.raises(ValueError, match="with 1 channels.* Received: 3 channels"):
        teacher.load(tasks.bind(run), channels=1)


def test_changed_teacher_is_refused_on_resume(tmp_path):
    """A run is not resumed with another teacher."""
    run, file = tmp_path / "run", tmp_path / "model.keras"
    given = record(tmp_path)
    assert teacher.record(given.task) == teacher.record(recipes.Recipe().task) == {}  # missing, and none
    file.write_bytes(b"abc")
    data = {"name": "toy", "class_names": ["a", "b"], **teacher.record(given.task)}
    run_directory.write_config(str(run), given, data)
    (run / "model.keras").write_bytes(b"")
    run_fields.check(str(run), given, data)
    file.write_bytes(b"abd")
    with pytest.raises(ValueError, match="teacher_sha256: 'ba7816bf.*--change_recipe"):
        run_fields.check(str(run), given, {**data, **teacher.record(given.task)})
