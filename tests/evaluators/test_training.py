"""Evaluators during training: features, moving averages, replicas and the schedule."""

import contextlib
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import evaluators, models
from keras_vit import recipe as recipes
from keras_vit.training import train
from keras_vit.training.tf.backend import TensorFlowBackend
from keras_vit.training.tf.state import TrainState
from tests.evaluators import synthetic

SIZES = {"patch_size": 4, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "mlp_dim": 16}


def make_state(**optim):
    recipe = recipes.Recipe(optim=recipes.Optim(**optim))
    model = models.VisionTransformer(image_size=8, classes=3, **SIZES)
    for weight in model.trainable_variables:  # the head starts at zero, which would hide its input
        weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    return TrainState(model, recipe)


def forward_of(state):
    return TensorFlowBackend(tf.distribute.get_strategy()).compile_forward(state)


def images(count=4):
    return np.random.default_rng(1).normal(size=(count, 8, 8, 3)).astype(np.float32)


@pytest.mark.slow
def test_scores_are_the_head_applied_to_the_features():
    state = make_state()
    features, scores = forward_of(state)(images())
    kernel, bias = (variable.numpy() for variable in state.model.get_layer("head").variables)
    assert features.shape == (4, 8)
    np.testing.assert_allclose(features @ kernel + bias, scores, rtol=1e-5, atol=1e-5)  # float32
    np.testing.assert_allclose(scores, state.model(images()), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_images_that_the_replicas_cannot_share_are_counted():
    class TwoReplicas:
        num_replicas_in_sync = 2
        scope = contextlib.nullcontext

        def run(self, function):
            return function()

        def experimental_local_results(self, value):
            return value, value

    forward = TensorFlowBackend(TwoReplicas()).compile_forward(make_state())
    with pytest.raises(ValueError, match="multiple of 2 replicas. Received: 3"):
        forward(images(3))


def test_representation_of_a_model_without_head_is_its_output():
    model = models.VisionTransformer(image_size=8, include_top=False, **SIZES)
    features, output = models.representation(model)(images())
    np.testing.assert_array_equal(features, output)


@pytest.mark.slow
def test_moving_averages_are_evaluated_if_available():
    state = make_state(ema_momentum=0.9)
    forward = forward_of(state)
    before = forward(images())[1]
    for weight in state.trained:
        weight.assign(weight + 1.0)  # the averages stay
    np.testing.assert_array_equal(forward(images())[1], before)
    state.begin()
    assert np.abs(forward(images())[1] - before).max() > 0.1


def test_training_loop_stops_at_every_evaluation_interval():
    computed = []

    def features(images):
        computed.append(len(images))
        return images

    split = evaluators.EvaluationData([{"image": np.eye(4, dtype=np.float32), "label": np.arange(4) % 2}], 2)
    context = synthetic.context(lambda *_: split, features=features)
    suite = evaluators.Suite(["knn(neighbors=(1,), every=3)", "fewshot(shots=(1,), seeds=1)"])
    scheduled = evaluators.Scheduled(suite, context, every=5)
    assert scheduled.intervals() == [3, 5]
    assert [step for step in range(1, 9) if scheduled.due(step, last=step == 8)] == [3, 5, 6, 8]
    assert scheduled(3) == [{"evaluator": "knn", "knn/k1": 1.0}]
    assert [values["evaluator"] for values in scheduled(8, last=True)] == ["knn", "fewshot"]
    assert computed == [4] * 4  # both splits, anew at each evaluation, once for both evaluators
    assert not context._features  # they take memory


def test_arrays_of_an_evaluation_are_released():
    scheduled = evaluators.Scheduled(evaluators.Suite(["classification"]), synthetic.context(synthetic.Data()), every=5)
    assert scheduled(5)[0]["classification/examples"] == scheduled.last[0].metrics["examples"] == 20
    assert scheduled.last[0].details == {}


def test_metrics_that_are_not_finite_are_none_in_the_log():
    """NaN is not JSON."""
    context = synthetic.context(synthetic.Data(), scores=lambda images: np.full_like(images, np.nan))
    (line,) = evaluators.Scheduled(evaluators.Suite(["classification"]), context, every=5)(5)
    assert line["classification/loss"] is None and line["classification/accuracy"] == 0.0


def test_failed_evaluator_loses_only_its_own_results():
    opened = []

    def open_split(source, split, pp):
        opened.append(split)
        if len(opened) > 4:  # both splits of both evaluators were opened before training
            raise OSError("the disk is gone")
        return evaluators.EvaluationData([{"image": np.eye(4, dtype=np.float32), "label": np.arange(4) % 2}], 2)

    suite = evaluators.Suite(["knn(neighbors=(1,))", "fewshot(shots=(1,), seeds=1)"])
    scheduled = evaluators.Scheduled(suite, synthetic.context(open_split), every=5)
    before = len(opened)
    assert before == 4
    expected = [
        {"evaluator": "knn", "not_measured": "OSError: the disk is gone"},
        {"evaluator": "fewshot", "not_measured": "OSError: the disk is gone"},
    ]
    assert scheduled(5) == expected
    opened.clear()
    assert ["knn/k1" in line or "fewshot/1shot" in line for line in scheduled(8, last=True)] == [True, True]
    assert scheduled.failed == {line["evaluator"]: line["not_measured"] for line in expected}  # the run ends with it


def test_lost_worker_is_not_reported_as_a_failed_evaluator():

    def scores(images):
        raise tf.errors.UnavailableError(None, None, "Collective ops is aborted by: recvmsg")

    scheduled = evaluators.Scheduled(
        evaluators.Suite(["classification"]), synthetic.context(synthetic.Data(), scores=scores), every=5
    )
    with pytest.raises(tf.errors.UnavailableError):
        scheduled(5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("evaluator", "class_names", "message"),
    [
        ("classification", "abc", "cannot run: The data must have the model's 3 classes, not 10: a, b, c"),
        (
            "knn(pp='resize(12)|grayscale_to_rgb')",
            "0123456789",
            r"takes images of the shape \(8, 8, 3\). Received: .*\(12, 12, 3\)",
        ),
    ],
)
def test_mismatches_with_the_model_are_refused_before_training(evaluator, class_names, message):
    recipe = recipes.Recipe(
        data=recipes.Data(source="digits", pp_eval="grayscale_to_rgb|value_range"), evaluators=(evaluator,)
    )
    backend = TensorFlowBackend(tf.distribute.get_strategy())
    split = types.SimpleNamespace(class_names=tuple(class_names))
    data = types.SimpleNamespace(train=split, eval_batch_size=8)
    with pytest.raises(ValueError, match=message):
        train.scheduled_evaluators(recipe, backend, make_state(), data)


def test_on_bad_image_of_the_recipe_applies_to_evaluators(monkeypatch):
    given = []

    def split_opener(*arguments):
        given.append(arguments)
        raise InterruptedError

    monkeypatch.setattr(train.evaluators, "split_opener", split_opener)
    recipe = recipes.Recipe(data=recipes.Data(on_bad_image="skip"), evaluators=("knn",))
    data = types.SimpleNamespace(train=types.SimpleNamespace(class_names=("a", "b", "c")), eval_batch_size=8)
    state = types.SimpleNamespace(
        model=types.SimpleNamespace(config=types.SimpleNamespace(image_shape=()), values=None)
    )
    backend = types.SimpleNamespace(compile_forward=lambda state: None)
    with pytest.raises(InterruptedError):
        train.scheduled_evaluators(recipe, backend, state, data)
    assert given == [(8, "skip")]
