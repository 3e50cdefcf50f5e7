"""Every kind of output has all properties that the package needs."""

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


def test_every_output_kind_has_its_properties(kind):
    found = (kind.output_name, kind.signature, kind.served_names, kind.raw, kind.label_kind, kind.label_key, kind.task)
    assert found == QUESTIONS[kind.name]
    assert list(QUESTIONS) == list(outputs.NAMES) and len(kind.limits) == len(outputs.PRECISIONS)
    assert sum((kind.has_probabilities, kind.has_values, kind.has_masks)) == bool(kind.served_entries)
    assert kind.has_probabilities == (kind.is_exclusive != kind.is_independent)
    assert kind.evaluator in evaluators.EVALUATORS


def test_output_kinds_are_found_by_each_of_their_names(kind):
    assert outputs.of(kind.name) is kind
    assert kind.label_kind is None or outputs.of(kind.label_kind) is kind
    assert outputs.of(kind.output_name).output_name == kind.output_name
    assert not outputs.of(None).served_names
    with pytest.raises(ValueError, match="output must be one of .*'tanh'"):
        outputs.of("tanh")


def test_task_of_a_label_kind_predicts_its_output_kind(kind):
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
def test_predictions_are_formatted_as_json_and_text(name, prediction, json, text):
    kind = outputs.of(name)
    parts = kind.parts(np.array(prediction), ("a", "b"))
    assert [" ".join(line.split()) for line in kind.as_text(parts).splitlines()] == text
    ((key, entries),) = kind.as_json(parts).items()
    assert {key: [tuple(entry.values()) for entry in entries] if key != "values" else tuple(entries)} == json


@pytest.mark.parametrize("name", ["scores", "features"])
def test_raw_outputs_have_no_parts(name):
    assert outputs.of(name).parts(np.array([0.25, 0.75]), ()) == ()
    assert outputs.of(name).uncertainty(np.array([0.25, 0.75]), False) == 0.0


def test_predictions_of_every_kind_are_computed_and_compared(kind):
    raw = np.array([[[[0.0, 2.0]]]] if kind.has_masks else [[0.0, 2.0]], np.float32)
    predictions = np.asarray(kind.predictions(raw, VALUES, (1, 1)))
    share = {"softmax": 1 / (1 + np.exp(2)), "sigmoid": 0.5, "values": 40.0, "mask": 1, "scores": 0.0, "features": 0.0}
    assert predictions.ravel()[0] == pytest.approx(share[kind.name])
    assert not kind.differences(predictions, predictions, VALUES).any()
    assert kind.differences(predictions, predictions + 1, VALUES).max() > 0
