"""The settings with which the runtime of each format is opened, above all the number of threads."""

import logging
import os
import sys
import types

import numpy as np
import pytest

from keras_vit.inference import formats, onnx, openvino, saved_model
from tests import tiny

OF_WEIGHTS = pytest.mark.parametrize(
    ("dtype", "precision"), [("float32", "float32"), ("int8", "dynamic_int8"), ("uint8", "dynamic_int8")]
)


class Opened(RuntimeError):
    """The runtime is opened. Raised to stop at that point."""


@pytest.fixture
def opened(monkeypatch):
    """A function that records the arguments of a runtime, and the records."""
    found = []

    def record(*arguments, **settings):
        found.append((arguments, settings))
        raise Opened

    return record, found


@pytest.mark.parametrize(("given", "threads"), [(3, 3), (None, os.cpu_count())])
def test_num_threads_applies_to_tflite(given, threads, opened, tmp_path, monkeypatch):
    record, found = opened
    (tmp_path / "a.tflite").write_bytes(b"1234TFL3")
    monkeypatch.setattr("keras_vit.inference.model_card.read", lambda path: tiny.card())
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", types.SimpleNamespace(Interpreter=record))
    with pytest.raises(Opened):
        formats.FORMATS["tflite"].open(str(tmp_path / "a.tflite"), given)
    assert found == [((), {"model_path": str(tmp_path / "a.tflite"), "num_threads": threads})]


@pytest.mark.parametrize(("given", "threads"), [(3, 3), (None, os.cpu_count())])
def test_num_threads_applies_to_onnx(given, threads, opened, monkeypatch):
    runtime = pytest.importorskip("onnxruntime")
    record, found = opened
    monkeypatch.setattr(runtime, "InferenceSession", record)
    with pytest.raises(ValueError, match=r"'a\.onnx' is not an ONNX file"):
        onnx._open_session("a.onnx", given, "scores")
    (((path, options), settings),) = found
    assert (path, options.intra_op_num_threads, settings) == (
        "a.onnx",
        threads,
        {"providers": ["CPUExecutionProvider"]},
    )


@OF_WEIGHTS
def test_precision_of_an_externally_quantized_onnx_file_is_detected(dtype, precision, tmp_path):
    library = pytest.importorskip("onnx")
    weights = library.numpy_helper.from_array(np.ones((2, 3), dtype), "weights")
    path = str(tmp_path / "a.onnx")
    library.save(library.helper.make_model(library.helper.make_graph([], "graph", [], [], [weights])), path)
    predictor = types.SimpleNamespace(path=path)
    assert onnx.OnnxPredictor.stored_precision.fget(predictor) == precision


@OF_WEIGHTS
def test_precision_of_an_externally_quantized_openvino_file_is_detected(dtype, precision, tmp_path):
    runtime = pytest.importorskip("openvino")
    images = runtime.opset13.parameter([2, 3], np.float32)
    weights = runtime.opset13.convert(runtime.opset13.constant(np.ones((2, 3), dtype)), "f32")
    path = str(tmp_path / "a.xml")
    runtime.save_model(runtime.Model([runtime.opset13.multiply(images, weights)], [images]), path, False)
    predictor = types.SimpleNamespace(path=path, _is_half=False)
    assert openvino.OpenVinoPredictor.stored_precision.fget(predictor) == precision


@pytest.mark.parametrize(("given", "threads"), [(3, {"INFERENCE_NUM_THREADS": 3}), (None, {})])
def test_num_threads_applies_to_openvino(given, threads, opened, monkeypatch):
    record, found = opened
    core = types.SimpleNamespace(read_model=lambda path: path, compile_model=record)
    monkeypatch.setattr(openvino, "import_openvino", lambda: types.SimpleNamespace(Core=lambda: core))
    for is_half in (False, True):
        with pytest.raises(ValueError, match=r"'a\.xml' is not an OpenVINO model"):
            openvino._compile("a.xml", given, "scores", is_half)
    expected = [
        {"INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "LATENCY", **threads} for hint in ("f32", "bf16")
    ]
    assert found == [(("a.xml", "CPU", config), {}) for config in expected]


@pytest.mark.parametrize(("given", "threads"), [(3, 3), (None, 0)])
def test_num_threads_applies_to_saved_models(given, threads, opened, monkeypatch):
    """TensorFlow uses all cores for 0. The session has threads of its own."""
    record, found = opened
    monkeypatch.setattr("keras_vit.inference.model_card.read", lambda path: tiny.card())
    monkeypatch.setattr(saved_model.tf.compat.v1, "Session", record)
    with pytest.raises(Opened):
        saved_model.SavedModelPredictor("a", given)
    ((_, settings),) = found
    assert settings["config"].intra_op_parallelism_threads == threads and settings["config"].use_per_session_threads


def test_warnings_of_the_loader_are_hidden_only_while_loading():
    logger = saved_model.tf.get_logger()
    before = logger.level
    try:
        logger.setLevel("INFO")
        with pytest.raises(Opened), saved_model._without_deprecation_warnings():
            assert not logger.isEnabledFor(logging.WARNING) and logger.isEnabledFor(logging.ERROR)
            raise Opened
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)
