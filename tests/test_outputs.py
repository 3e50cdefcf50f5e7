"""Every kind of output predictions every question that the package asks."""

import numpy as np
import pytest

from keras_vit import evaluators, outputs, recipe
from keras_vit.data import Source

# Kind -> output, signature of a TFLite file, names in serving_default, raw outputs, labels, their entry, task
QUESTIONS = {
    "softmax": ("probabilities", "classify", "top_k_classes", "logits", "class", "label", "classification"),
    "sigmoid": ("probabilities", "classify", "top_k_classes", "logits", "classes", "label", "multi_label"),
    "values": ("values", "values", "value_names", "standardized", "values", "label", "regression"),
    "mask": ("mask", "mask", "class_names", "logits", "mask", "mask", "segmentation"),
    "scores": ("scores", "scores", "", "", None, "label", "masked_patch"),
    "features": ("features", "features", "", "", None, "label", "masked_patch"),
}
VALUES = {"names": ("age", "height"), "mean": (40.0, 1.5), "deviation": (10.0, 0.5)}


@pytest.fixture(params=outputs.KINDS, ids=lambda kind: kind.name)
def kind(request):
    return request.param


def test_questions(kind):
    found = (kind.output_name, kind.signature, kind.served_names, kind.raw, kind.label_kind, kind.label_key, kind.task)
    assert found == QUESTIONS[kind.name]
    assert list(QUESTIONS) == list(outputs.NAMES) and len(kind.limits) == len(outputs.PRECISIONS)
    assert sum((kind.has_probabilities, kind.has_values, kind.has_masks)) == bool(kind.served_entries)
    assert kind.has_probabilities == (kind.is_exclusive != kind.is_independent)
    assert kind.evaluator in evaluators.EVALUATORS


def test_every_name_of_a_kind_finds_it(kind):
    assert outputs.of(kind.name) is kind
    assert kind.label_kind is None or outputs.of(kind.label_kind) is kind
    assert outputs.of(kind.output_name).output_name == kind.output_name
    assert not outputs.of(None).served_names
    with pytest.raises(ValueError, match="output must be one of .*'tanh'"):
        outputs.of("tanh")


def test_the_task_learns_the_labels_and_predicts_the_kind(kind):
    if kind.label_kind is None:
        return
    assert Source("a", "all", 1, ["b"], kind.label_kind).kind is kind
    learned = recipe.Recipe(task=kind.task, loss=kind.loss)
    assert (learned.task.labels, learned.task.output(learned)) == (kind.label_kind, kind.name)
    assert learned.task.evaluator == kind.evaluator


@pytest.mark.parametrize(
    ("name", "prediction", "json", "text"),
    [
        ("softmax", [0.25, 0.75], {"predictions": [("b", 0.75), ("a", 0.25)]}, ["b 75.0%", "a 25.0%"]),
        ("sigmoid", [0.25, 0.75], {"predictions": [("b", 0.75), ("a", 0.25)]}, ["b 75.0%", "a 25.0%"]),
        ("values", [1953.44, 0.5], {"values": ("a", "b")}, ["a 1953.4", "b 0.5"]),
        ("mask", [[1, 1], [1, 1]], {"classes": [("b", 1.0)]}, ["b 100.0%"]),
    ],
)
def test_a_prediction_is_shown(name, prediction, json, text):
    kind = outputs.of(name)
    parts = kind.parts(np.array(prediction), ("a", "b"))
    assert [" ".join(line.split()) for line in kind.as_text(parts).splitlines()] == text
    ((key, entries),) = kind.as_json(parts).items()
    assert {key: [tuple(entry.values()) for entry in entries] if key != "values" else tuple(entries)} == json


@pytest.mark.parametrize("name", ["scores", "features"])
def test_raw_outputs_have_no_parts(name):
    assert outputs.of(name).parts(np.array([0.25, 0.75]), ()) == ()
    assert outputs.of(name).uncertainty(np.array([0.25, 0.75]), False) == 0.0


def test_answers_and_their_differences(kind):
    raw = np.array([[[[0.0, 2.0]]]] if kind.has_masks else [[0.0, 2.0]], np.float32)
    predictions = np.asarray(kind.predictions(raw, VALUES, (1, 1)))
    share = {"softmax": 1 / (1 + np.exp(2)), "sigmoid": 0.5, "values": 40.0, "mask": 1, "scores": 0.0, "features": 0.0}
    assert predictions.ravel()[0] == pytest.approx(share[kind.name])
    assert not kind.differences(predictions, predictions, VALUES).any()
    assert kind.differences(predictions, predictions + 1, VALUES).max() > 0
