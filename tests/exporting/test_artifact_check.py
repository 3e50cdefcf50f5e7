"""Artifacts that were changed after the export, with a recomputed card, and artifacts with only a card."""

import contextlib
import dataclasses
import os
import shutil
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_vit import models
from keras_vit.exporting import artifact_check, inference_model, saved_model, tflite, verify
from keras_vit.inference import KerasPredictor, masks, model_card
from keras_vit.inference.opening import open_artifact
from keras_vit.inference.saved_model import SavedModelPredictor
from keras_vit.util import file_io
from tests import selection, tiny


def check(artifact, model):
    """The problems that the check finds, under the tolerance of the file."""
    reference = KerasPredictor(model, tiny.card())
    tolerance = verify.tolerance_of(artifact.stored_precision)
    return artifact_check.check(artifact, reference, tiny.images(), tolerance)


def edit_card(path, **changes):
    """Change fields of a card and compute its hashes again."""
    card = model_card.path_of(str(path))
    content = file_io.read_json(card)
    parts = model_card.parts_of(str(path))
    for name in content["files"]:
        content["files"][name] = {"bytes": os.path.getsize(parts[name]), "sha256": file_io.sha256(parts[name])}
    file_io.write_json(card, {**content, **changes})


@pytest.fixture
def copied(served, tmp_path):
    shutil.copytree(served[1] / "1", tmp_path / "1")
    return tmp_path / "1"


SIGNATURES = {"classify_bytes": "serving_default", "classify_images": "serve_images", "classify_tensor": "serve_tensor"}


def exchange_labels(path, signature):
    """Exchange two labels in the graph of one signature."""
    content = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    (graph,) = content.meta_graphs
    changed = 0
    for function in graph.graph_def.library.function:
        for node in function.node_def if signature in function.signature.name else ():
            if node.op == "Const" and b"bee" in list(node.attr["value"].tensor.string_val):
                names = node.attr["value"].tensor.string_val
                names[0], names[1] = names[1], names[0]
                changed += 1
    assert changed
    (path / "saved_model.pb").write_bytes(content.SerializeToString())


@pytest.mark.slow
def test_unchanged_artifact_has_no_problems(served, served_artifact):
    comparison, problems = check(served_artifact, served[0])
    assert problems == []
    assert comparison.examples == 6


@pytest.mark.slow
@pytest.mark.parametrize("signature", ["serving_default", "serve_images", "serve_tensor"])
def test_wrong_probabilities_in_any_signature_are_reported(served, served_artifact, signature, monkeypatch):
    run = SavedModelPredictor.run

    def halved(artifact, name, inputs):
        found = run(artifact, name, inputs)
        return {**found, "probabilities": found["probabilities"] / 2} if name == signature else found

    monkeypatch.setattr(SavedModelPredictor, "run", halved)
    _, problems = check(served_artifact, served[0])
    assert [problem.partition(":")[0] for problem in problems] == [signature]
    assert "the largest difference of a probability" in problems[0]


@pytest.mark.slow
def test_swapped_class_names_in_any_signature_are_reported(served, copied):
    for function in SIGNATURES:
        exchange_labels(copied, function)
    edit_card(copied)
    _, problems = check(open_artifact(str(copied)), served[0])
    wrong = "top_k_classes does not name the outputs"
    assert sorted(problems) == sorted(f"{signature}: {wrong}" for signature in SIGNATURES.values())


def named(**outputs):
    """Outputs of a signature for two images of three classes."""
    probabilities = np.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]], np.float32)
    return {"probabilities": probabilities, **{name: np.array(value, object) for name, value in outputs.items()}}


@pytest.mark.parametrize(
    ("kind", "outputs", "wrong"),
    [
        ("softmax", named(), None),
        ("softmax", named(top_k_classes=[[b"b", b"c"], [b"a", b"c"]]), None),
        ("softmax", named(top_k_classes=[[b"b", b"c"], [b"a", b"b"]]), "top_k_classes"),
        ("values", named(value_names=[[b"a", b"b", b"c"]] * 2), None),
        ("values", named(value_names=[[b"a", b"b", b"c"], [b"a", b"c", b"b"]]), "value_names"),
        ("mask", named(class_names=[[b"a", b"b", b"x"]] * 2), "class_names"),
        ("features", named(), None),
    ],
)
def test_wrong_class_names_in_outputs_are_reported(kind, outputs, wrong):
    found = artifact_check._wrong_names(outputs, dataclasses.replace(tiny.card(kind), class_names=("a", "b", "c")))
    assert found == ([f"{wrong} does not name the outputs"] if wrong else [])


def test_equal_probabilities_are_in_the_order_of_the_classes():
    """As in TensorFlow's `top_k`. NumPy's default order of more than 16 numbers is not stable."""
    names = [f"class {number}" for number in range(40)]
    probabilities = np.arange(40)[None] % 2 / np.float32(20)
    labels = np.array(names, object)[tf.math.top_k(probabilities, 5)[1].numpy()]
    outputs = {"probabilities": probabilities, "top_k_classes": np.array([[n.encode() for n in labels[0]]], object)}
    assert artifact_check._wrong_names(outputs, dataclasses.replace(tiny.card(), class_names=tuple(names))) == []


@pytest.mark.parametrize(("error", "differs"), [(0.999e-3, False), (1.001e-3, True)])
def test_features_may_differ_by_a_thousandth_of_their_length(error, differs):
    expected = np.array([[3.0, 0.0], [0.0, 4.0]])  # a length of 5
    artifact = types.SimpleNamespace(stored_precision="float32")
    found = artifact_check._different_features(
        "features", artifact, expected, expected + [[0.0, 5 * error], [0.0, 0.0]]
    )
    assert found == (["features: the difference is 1.0e-03 of the length, expected at most 0.001"] if differs else [])


@pytest.mark.parametrize(
    ("runs", "size", "differs"),
    [
        ([[7, 2], [1, 4]], [2, 3], False),
        ([[7, 2], [1, 4]], [3, 2], True),
        ([[7, 3], [1, 3]], [2, 3], True),
        ([[1, 2], [7, 4]], [2, 3], True),
    ],
)
def test_run_lengths_of_another_mask_are_reported(runs, size, differs):
    mask = np.array([[7, 7, 1], [1, 1, 1]], np.uint8)
    outputs = {"run_lengths": {"run_lengths": np.array([runs]), "size": np.array([size])}}
    outputs["serving_default"] = {"mask_bytes": [masks.to_png(mask)]}
    artifact = types.SimpleNamespace(
        signatures=outputs, run=lambda name, inputs: outputs[name], preprocess=lambda contents: None
    )
    problems = artifact_check._check_extra_signatures(artifact, artifact, [b"image"])
    assert problems == (["run_lengths: the mask differs from the mask of serving_default"] if differs else [])


def noisy(scale):
    """The model with noise on its weights, relative to their deviation."""
    model, rng = tiny.model(), np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign_add(rng.normal(size=weight.shape) * scale * float(np.std(weight)))
    return model


@pytest.mark.slow
def test_tolerance_follows_the_precision_of_the_file_not_of_its_card(tmp_path):
    """Weights with noise, and a card that claims a precision that would explain it."""
    path = str(tmp_path / "a.tflite")
    tflite.write(noisy(0.1), path, card=tiny.card(), images=tiny.images())
    edit_card(path, precision="int8")
    artifact = open_artifact(path)
    assert artifact.stored_precision == "float32"
    comparison, problems = check(artifact, tiny.model())
    assert verify.failures(comparison, verify.tolerance_of("int8")) == []
    assert any("the largest difference of a probability" in problem for problem in problems)


@pytest.mark.slow
def test_second_softmax_is_reported(monkeypatch):
    """Of a model whose last operation is not known as a softmax: the artifact and the reference both add another."""
    base = tiny.model(num_layers=1)
    exponentials = keras.ops.exp(base.output)
    model = keras.Model(base.input, exponentials / keras.ops.sum(exponentials, axis=-1, keepdims=True))
    _, problems = check(KerasPredictor(model, tiny.card()), model)
    assert problems == ["the outputs of the model are already probabilities; end the model in keras.layers.Softmax"]
    shown = []
    monkeypatch.setattr(artifact_check, "track", lambda items, what, **_: shown.append(what) or items)
    model = keras.Model(base.input, exponentials)  # logits without a negative number are not probabilities
    assert check(KerasPredictor(model, tiny.card()), model)[1] == []
    assert shown == ["Predicting with the model", "Verifying probabilities"]
    model = keras.Model(base.input, keras.layers.Softmax()(base.output))
    assert check(KerasPredictor(model, tiny.card()), model)[1] == []


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "finds"), [("float32", True), ("mixed_bfloat16", False)])
def test_the_reference_is_the_model_itself(dtype, finds, tmp_path, monkeypatch):
    """Not the copy that is exported, unless rounding to 16 bits would hide more than the copy could."""
    copy_weights = inference_model._copy_weights

    def wrong(source, target):
        copy_weights(source, target)
        if isinstance(target, models.VisionTransformer):
            target.get_layer("head").bias.assign_add([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0])

    monkeypatch.setattr(inference_model, "_copy_weights", wrong)
    options = {"card": tiny.card(), "images": tiny.images()}
    with pytest.raises(verify.VerificationError) if finds else contextlib.nullcontext():
        tflite.write(tiny.model(num_layers=1, dtype=dtype), str(tmp_path / "a.tflite"), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "stored"),
    [("mixed_bfloat16", "bfloat16"), pytest.param("mixed_float16", "float16", marks=selection.EXHAUSTIVE)],
)
def test_the_precision_of_a_saved_model_is_read_from_its_graph(precision, stored, tmp_path):
    options = {"card": tiny.card(), "images": tiny.images(), "precision": precision}
    path, _ = saved_model.write(tiny.model(num_layers=1), str(tmp_path), **options)
    assert open_artifact(path).stored_precision == stored


@pytest.mark.slow
def test_images_above_the_pixel_limit_are_skipped(tmp_path, caplog):
    images = tiny.images(2)
    large = tiny.encode(np.zeros((300, 400, 3), np.uint8), "PNG")
    images = images._replace(contents=[large, *images.contents[1:]])
    options = {"card": tiny.card(), "max_pixels": 100_000}
    path, comparison = saved_model.write(tiny.model(num_layers=1), str(tmp_path), images=images, **options)
    assert comparison.examples == 1
    assert open_artifact(path).card.max_pixels == 100_000
    with pytest.raises(ValueError, match="--max_pixels"):
        saved_model.write(
            tiny.model(num_layers=1), str(tmp_path), images=images._replace(contents=[large, large]), **options
        )
