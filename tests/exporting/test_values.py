"""Models that predict numbers: every artifact returns them in the unit of the data."""

import dataclasses

import numpy as np
import pytest

from keras_vit import exporting, inference
from keras_vit.exporting import artifact_check, saved_model, tflite, verify
from keras_vit.exporting.inference_model import inference_model
from keras_vit.inference import formats, model_card
from keras_vit.inference.tflite import make_interpreter
from keras_vit.util.values import Values
from tests import selection, tiny

VALUES = Values(("year", "price"), mean=(1950.0, 2e6), deviation=(10.0, 2e5))
PREPROCESS = "value_range(-1, 1)"


def network(**arguments):
    return tiny.regression(VALUES, **arguments)


def card(**details):
    details = {"output": "values", "values": VALUES.to_dict(), **details}
    return dataclasses.replace(tiny.card(), class_names=(), **details)


def in_deviations(found, model, arrays):
    """The largest difference of predictions from the model's, in standard deviations."""
    raw = np.float64(model.predict(arrays / np.float32(127.5) - 1, verbose=0))
    return np.abs((np.float64(found) - VALUES.mean) / VALUES.deviation - raw).max()


FORMATS = {
    "saved_model": ("served", {"extra_signatures": ("features",), "warm_up": [1]}, 1e-4),
    "bfloat16": ("served", {"precision": "mixed_bfloat16"}, 0.1),
    "float16": ("served", {"precision": "mixed_float16"}, 0.02),
    "tflite": ("a.tflite", {"features": True}, 1e-4),
    "tflite_float16": ("a.tflite", {"precision": "float16"}, 0.02),
    "onnx": ("a.onnx", {}, 1e-4),
    "openvino": ("a.xml", {"batch_size": 2}, 1e-4),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    # Of the rounded precisions, the coarsest: values of 1950 ± 10 need more digits than it has.
    selection.cases(FORMATS, ["saved_model", "bfloat16", "tflite", "onnx", "openvino"], selection.EXHAUSTIVE),
)
def test_artifacts_return_values_in_the_unit_of_the_data(name, tmp_path):
    for module in {"onnx": ("onnxruntime", "tf2onnx"), "openvino": ("openvino",)}.get(name, ()):
        pytest.importorskip(module)
    path, options, limit = FORMATS[name]
    model, arrays = network(), tiny.arrays(4, tiny.SIZE, tiny.SIZE)
    comparison = exporting.export(model, tmp_path / path, images=arrays, preprocess=PREPROCESS, **options)
    assert comparison.top1_agreement is None and comparison.max_difference <= limit
    assert "standard deviations, computed in " in comparison.summary()
    artifact = inference.open_predictor(tmp_path / path)
    assert (artifact.card.output_name, artifact.card.names, artifact.class_names) == ("values", VALUES.names, ())
    assert artifact.scores_are == "values"
    images = arrays / np.float32(127.5) - 1
    found = artifact.predict(images)
    assert found.dtype == np.float32
    assert in_deviations(found, model, arrays) <= limit
    if artifact.features_unavailable is None:
        assert artifact.features(images).shape == (4, 16)
    if name == "saved_model":
        answer = artifact.run("serving_default", {"image_bytes": [*tiny.images(1).contents, b"bad"]})
        assert answer["value_names"].tolist() == [[b"year", b"price"], [b"", b""]]
        assert answer["values"][1].tolist() == [0, 0] and answer["valid"].tolist() == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision", selection.cases(formats.TFLITE.precisions, ["float16", "int8"], selection.EXHAUSTIVE)
)
def test_large_means_are_added_without_loss_of_precision(precision, tmp_path):
    """The numbers are those of the same file before the mean is added, but for the rounding of float32."""
    model = inference_model(network(hidden_size=64, mlp_dim=128, num_heads=4))
    images = tiny.arrays(6, tiny.SIZE, tiny.SIZE) / np.float32(127.5) - 1
    found = {}
    for output in ("values", "scores"):
        content = tflite.convert(model, card(output=output, precision=precision), calibration_images=images)
        (tmp_path / f"{output}.tflite").write_bytes(content)
        run = make_interpreter(str(tmp_path / f"{output}.tflite")).get_signature_runner()
        found[output] = np.concatenate([run(images=image[None])[output] for image in images])
    assert found["values"].dtype == np.float32
    assert np.abs((np.float64(found["values"]) - VALUES.mean) / VALUES.deviation - found["scores"]).max() < 2e-5


@pytest.mark.slow
def test_first_subgraph_returns_values(tmp_path):
    options = {"card": card(), "images": tiny.images(2), "features": True, "input_dtype": "uint8"}
    tflite.write(network(), str(tmp_path / "a.tflite"), **options)
    starts = starts_of_buffers((tmp_path / "a.tflite").read_bytes())
    assert len(starts) > 8 and not any(start % 16 for start in starts)  # TFLite's schema: force_align
    opened = make_interpreter(str(tmp_path / "a.tflite"))
    assert opened.get_signature_list().keys() == {"values", "features"}
    opened.allocate_tensors()
    assert opened.get_output_details()[0]["shape"].tolist() == [1, 2]


def starts_of_buffers(content):
    """The offsets of the buffers of a TFLite file."""
    from tensorflow.lite.python import schema_py_generated as schema

    model = schema.Model.GetRootAs(content, 0)
    buffers = [model.Buffers(index)._tab for index in range(model.BuffersLength())]
    return [table.Vector(table.Offset(4)) for table in buffers if table.Offset(4)]


def test_differences_are_in_standard_deviations():
    reference = np.float32([[1950.0, 2e6], [1960.0, 2.2e6]])
    comparison = verify.compare_answers(card(), reference, reference + np.float32([[1.0, 0.0], [0.0, 1e5]]))
    assert comparison.max_difference == pytest.approx(0.5, rel=1e-4)
    assert comparison.mean_difference == pytest.approx(0.15, rel=1e-4)
    (problem,) = verify.failures(comparison, verify.tolerance_of("int8", "values"))
    assert "of a value is 5.00e-01 standard deviations, expected at most 2.50e-01" in problem
    neighbor = np.nextafter(reference, np.float32(np.inf))
    assert verify.compare_answers(card(), reference, neighbor).max_difference == 0.0
    assert verify.compare_answers(card(), reference, reference * np.nan).max_difference == np.inf


@pytest.mark.slow
def test_wrong_values_and_names_are_found(tmp_path):
    path, _ = saved_model.write(network(), str(tmp_path), card=card(), images=tiny.images(2))
    artifact, model = inference.open_predictor(path), network()
    renamed = card(values={**VALUES.to_dict(), "names": ["price", "year"]})
    moved = card(values={**VALUES.to_dict(), "mean": [1951.0, 2e6]})
    tolerance = verify.tolerance_of("float32", "values")
    for description, problem in (
        (renamed, "value_names does not name the outputs"),
        (moved, "1.00e-01 standard deviations"),
    ):
        reference = inference.KerasPredictor(model, description)
        _, problems = artifact_check.check(artifact, reference, tiny.images(2), tolerance)
        assert len(problems) == 3 and all(problem in text for text in problems)


def test_a_card_of_other_values_is_refused(tmp_path):
    for change in ({"values": {}}, {"values": {**VALUES.to_dict(), "deviation": [1.0, 0.0]}}):
        (tmp_path / "a.onnx").write_bytes(b"")
        model_card.write(str(tmp_path / "a.onnx"), card(**change))
        with pytest.raises(ValueError, match="Export the artifact again"):
            model_card.read(str(tmp_path / "a.onnx"))
